-- Who changed what when, with what was there before.

CREATE TABLE revision (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    document_id text COLLATE "C" NOT NULL REFERENCES document ON DELETE CASCADE,
    segment_id text COLLATE "C", -- null: the document itself; it outlives its segment
    action text NOT NULL CHECK (action IN
        ('created', 'edited', 'enabled', 'disabled', 'deleted', 'renamed', 'rebuilt')),
    before jsonb, -- the fields that changed; null: it was not there
    after jsonb, -- null: it is gone
    undoes bigint, -- the revision that this one takes back
    edited_by text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX revision_document ON revision (document_id, id);
CREATE INDEX revision_segment ON revision (segment_id, id) WHERE segment_id IS NOT NULL;

-- An edited text has no vector in any space until one is written: else a dataset that is being
-- embedded with another model would go over to it with the vector of an earlier text.
CREATE FUNCTION delete_stale_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    space int;
BEGIN
    FOR space IN EXECUTE format('SELECT id FROM %I.embedding_space', TG_TABLE_SCHEMA) LOOP
        IF to_regclass(format('%I.%I', TG_TABLE_SCHEMA, 'vector_' || space)) IS NOT NULL THEN
            EXECUTE format('DELETE FROM %I.%I WHERE segment_id = $1',
                           TG_TABLE_SCHEMA, 'vector_' || space) USING OLD.id;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE TRIGGER segment_stale_vectors AFTER UPDATE ON segment
    FOR EACH ROW WHEN (OLD.hash IS DISTINCT FROM NEW.hash)
    EXECUTE FUNCTION delete_stale_vectors();

-- A segment that is indexed again counts only what differs: of an edited text most is as it was.
CREATE FUNCTION full_text_recount() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    WITH counted AS (
        SELECT term_id, sum(step)::int AS segments FROM (
            SELECT unnest(terms) AS term_id, -1 AS step FROM was
            UNION ALL SELECT unnest(terms), 1 FROM changed
        ) AS steps GROUP BY term_id HAVING sum(step) <> 0
    ), locked AS ( -- in one order, so that two writers cannot wait for each other
        SELECT t.id, counted.segments FROM full_text_term t JOIN counted ON counted.term_id = t.id
        ORDER BY t.id FOR UPDATE OF t
    )
    UPDATE full_text_term t SET df = t.df + locked.segments FROM locked WHERE t.id = locked.id;

    UPDATE full_text_statistics s SET length = s.length + grown.length
    FROM (SELECT dataset_id, sum(length) AS length FROM (
              SELECT dataset_id, -length::float8 AS length FROM was
              UNION ALL SELECT dataset_id, length::float8 FROM changed
          ) AS steps GROUP BY dataset_id) grown
    WHERE s.dataset_id = grown.dataset_id AND grown.length <> 0;
    RETURN NULL;
END $$;

DROP TRIGGER full_text_updated ON full_text_segment;
DROP FUNCTION full_text_refuse();
CREATE TRIGGER full_text_updated AFTER UPDATE ON full_text_segment
    REFERENCING OLD TABLE AS was NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION full_text_recount();
