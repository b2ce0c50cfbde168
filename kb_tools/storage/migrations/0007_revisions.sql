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
