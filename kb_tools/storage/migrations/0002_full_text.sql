-- BM25: one row of packed terms per segment, a lexicon with document frequencies per dataset.

CREATE TABLE full_text_term (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dataset_id text COLLATE "C" NOT NULL REFERENCES dataset ON DELETE CASCADE,
    term text COLLATE "C" NOT NULL,
    df int NOT NULL DEFAULT 0, -- indexed segments that hold the term, enabled or not
    UNIQUE (dataset_id, term)
) WITH (fillfactor = 80); -- df is in no index, so counting stays within the page

CREATE TABLE full_text_segment (
    segment_id text COLLATE "C" PRIMARY KEY REFERENCES segment ON DELETE CASCADE,
    dataset_id text COLLATE "C" NOT NULL,
    length real NOT NULL, -- words
    terms int[] NOT NULL, -- ids of its distinct terms; a term's id belongs to one dataset
    packed bytea NOT NULL -- the same ids as int32, then the count of each as uint16, little-endian:
                          -- an array leaves the server element by element, this in one piece
);
CREATE INDEX full_text_segment_terms ON full_text_segment USING gin (terms) WITH (fastupdate = off);
CREATE INDEX full_text_segment_dataset ON full_text_segment (dataset_id);

CREATE TABLE full_text_statistics (
    dataset_id text COLLATE "C" PRIMARY KEY REFERENCES dataset ON DELETE CASCADE,
    segments int NOT NULL DEFAULT 0,
    length double precision NOT NULL DEFAULT 0, -- of all segments together
    tokenizer text NOT NULL
);

-- The counts follow the rows whoever adds or deletes them, a cascade included, so that no code
-- can forget them. Rows are never updated: a change is a delete and an insert.
CREATE FUNCTION full_text_count() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    step int := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
    IF NOT EXISTS (SELECT FROM full_text_statistics s JOIN changed USING (dataset_id)) THEN
        RETURN NULL; -- the whole index of the dataset is going
    END IF;

    WITH counted AS (
        SELECT term_id, count(*)::int AS segments
        FROM changed, unnest(changed.terms) AS term_id GROUP BY term_id
    ), locked AS ( -- in one order, so that two writers cannot wait for each other
        SELECT t.id, counted.segments FROM full_text_term t JOIN counted ON counted.term_id = t.id
        ORDER BY t.id FOR UPDATE OF t
    )
    UPDATE full_text_term t SET df = t.df + step * locked.segments
    FROM locked WHERE t.id = locked.id;

    WITH counted AS (
        SELECT dataset_id, count(*)::int AS segments, sum(changed.length::float8) AS length
        FROM changed GROUP BY dataset_id
    ), locked AS (
        SELECT counted.* FROM full_text_statistics s JOIN counted USING (dataset_id)
        ORDER BY dataset_id FOR UPDATE OF s
    )
    UPDATE full_text_statistics s
    SET segments = s.segments + step * locked.segments, length = s.length + step * locked.length
    FROM locked WHERE s.dataset_id = locked.dataset_id;
    RETURN NULL;
END $$;

CREATE FUNCTION full_text_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of full_text_segment are deleted and inserted, never updated';
END $$;

CREATE TRIGGER full_text_inserted AFTER INSERT ON full_text_segment
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION full_text_count();
CREATE TRIGGER full_text_deleted AFTER DELETE ON full_text_segment
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION full_text_count();
CREATE TRIGGER full_text_updated BEFORE UPDATE ON full_text_segment
    FOR EACH STATEMENT EXECUTE FUNCTION full_text_refuse();
