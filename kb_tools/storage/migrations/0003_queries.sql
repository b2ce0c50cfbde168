-- The query log and the hits it caused; append-only, so a search never waits for another.

CREATE TABLE dataset_query (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trace_id text NOT NULL,
    dataset_id text COLLATE "C" NOT NULL REFERENCES dataset ON DELETE CASCADE,
    query text NOT NULL,
    rewritten_query text,
    source text NOT NULL,
    source_app_id text,
    created_by text,
    config_fingerprint text NOT NULL,
    segment_ids text[] NOT NULL,
    scores double precision[] NOT NULL,
    reason text,
    milliseconds double precision NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dataset_query_newest ON dataset_query (dataset_id, created_at DESC);
CREATE INDEX dataset_query_created ON dataset_query (created_at);

-- Rolled up now and then: many rows of one segment become one. No foreign keys, whose row locks
-- would make searches wait for edits; rows of deleted segments go with the roll-up.
CREATE TABLE segment_hit (
    segment_id text COLLATE "C" NOT NULL,
    document_id text COLLATE "C" NOT NULL,
    dataset_id text COLLATE "C" NOT NULL,
    hits int NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX segment_hit_segment ON segment_hit (segment_id);
CREATE INDEX segment_hit_document ON segment_hit (document_id);
CREATE INDEX segment_hit_dataset ON segment_hit (dataset_id);

-- One secret per knowledge base: fences around retrieved text are derived from it.
CREATE TABLE secret (
    name text PRIMARY KEY,
    value text NOT NULL DEFAULT replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')
);
INSERT INTO secret (name) VALUES ('fence');
