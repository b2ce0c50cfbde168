-- The batch whose documents of the same source take this one's place once they are completed.
ALTER TABLE document ADD COLUMN replaced_by text COLLATE "C";

-- A source may be longer than an index entry can be.
CREATE INDEX document_source ON document (dataset_id, md5(source));
CREATE INDEX document_replaced ON document (replaced_by, md5(source)) WHERE replaced_by IS NOT NULL;
