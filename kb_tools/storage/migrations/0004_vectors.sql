-- The embedding spaces that pgvector keeps, each in a table of its own named after `id`, made
-- when its first vector is written.

CREATE TABLE embedding_space (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model text NOT NULL,
    dimension int NOT NULL,
    UNIQUE (model, dimension)
);

-- Vectors go with their segments. A foreign key of each new table would do the same, but making it
-- takes a lock on segment that waits for every writer and would block them all behind it.
CREATE FUNCTION delete_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    space int;
BEGIN
    FOR space IN EXECUTE format('SELECT id FROM %I.embedding_space', TG_TABLE_SCHEMA) LOOP
        IF to_regclass(format('%I.%I', TG_TABLE_SCHEMA, 'vector_' || space)) IS NOT NULL THEN
            EXECUTE format('DELETE FROM %I.%I v USING gone WHERE v.segment_id = gone.id',
                           TG_TABLE_SCHEMA, 'vector_' || space);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

CREATE TRIGGER segment_vectors AFTER DELETE ON segment
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION delete_vectors();
