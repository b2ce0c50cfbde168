-- Datasets, documents and segments: the truth that every index is a function of.

CREATE TABLE dataset (
    id text COLLATE "C" PRIMARY KEY,
    account_id text NOT NULL,
    name text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 100),
    description text NOT NULL DEFAULT '',
    retrieval_config jsonb NOT NULL DEFAULT '{}',
    embedding_model text NOT NULL,
    embedding_dimension int,
    index_revision bigint NOT NULL DEFAULT 0, -- grows with every change of what can be found
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (account_id, name)
);
CREATE INDEX dataset_newest ON dataset (account_id, created_at DESC, id DESC);

CREATE TABLE process_rule (
    id text COLLATE "C" PRIMARY KEY,
    dataset_id text COLLATE "C" NOT NULL REFERENCES dataset ON DELETE CASCADE,
    mode text NOT NULL CHECK (mode IN ('automatic', 'custom', 'as_is')),
    rule jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX process_rule_dataset ON process_rule (dataset_id);

CREATE TABLE document (
    id text COLLATE "C" PRIMARY KEY,
    dataset_id text COLLATE "C" NOT NULL REFERENCES dataset ON DELETE CASCADE,
    process_rule_id text COLLATE "C" NOT NULL REFERENCES process_rule,
    batch text COLLATE "C" NOT NULL,
    name text NOT NULL,
    source text NOT NULL,
    extension text NOT NULL,
    mime_type text NOT NULL,
    size bigint NOT NULL,
    content_hash text NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    position int NOT NULL,
    character_count int NOT NULL DEFAULT 0,
    token_count int NOT NULL DEFAULT 0,
    enabled boolean NOT NULL DEFAULT false,
    disabled_at timestamptz,
    status text NOT NULL DEFAULT 'waiting'
        CHECK (status IN ('waiting', 'parsing', 'splitting', 'indexing', 'completed', 'error')),
    error text,
    report jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    processing_started_at timestamptz,
    parsing_completed_at timestamptz,
    splitting_completed_at timestamptz,
    indexing_completed_at timestamptz,
    completed_at timestamptz,
    stopped_at timestamptz,
    builder text COLLATE "C", -- who builds it; the lease is a row of builder
    CHECK (NOT enabled OR status = 'completed'),
    CHECK (builder IS NULL OR status NOT IN ('completed', 'error'))
);
CREATE INDEX document_unfinished ON document (dataset_id)
    WHERE status NOT IN ('completed', 'error');
CREATE INDEX document_builder ON document (builder) WHERE builder IS NOT NULL;
CREATE INDEX document_position ON document (dataset_id, position DESC);
CREATE INDEX document_batch ON document (batch);
CREATE INDEX document_rule ON document (process_rule_id);
CREATE INDEX document_content ON document (dataset_id, content_hash);

-- A process that builds documents; they are free again when its lease is over.
CREATE TABLE builder (
    id text COLLATE "C" PRIMARY KEY,
    lease_until timestamptz NOT NULL
);

-- The bytes as they came, beside the row so that a toggle does not carry them.
CREATE TABLE document_file (
    document_id text COLLATE "C" PRIMARY KEY REFERENCES document ON DELETE CASCADE,
    content bytea NOT NULL
);

-- The cleaned text that segment spans point into.
CREATE TABLE document_text (
    document_id text COLLATE "C" PRIMARY KEY REFERENCES document ON DELETE CASCADE,
    content text NOT NULL
);

CREATE TABLE segment (
    id text COLLATE "C" PRIMARY KEY,
    dataset_id text COLLATE "C" NOT NULL REFERENCES dataset ON DELETE CASCADE,
    document_id text COLLATE "C" NOT NULL REFERENCES document ON DELETE CASCADE,
    position int NOT NULL,
    content text NOT NULL,
    title text NOT NULL DEFAULT '',
    heading text NOT NULL DEFAULT '',
    page int,
    span int4range NOT NULL,
    keywords text[] NOT NULL DEFAULT '{}' CHECK (cardinality(keywords) <= 10),
    character_count int NOT NULL,
    token_count int NOT NULL,
    hash text NOT NULL, -- of the text that is embedded; not unique: two documents may say the same
    enabled boolean NOT NULL DEFAULT false,
    disabled_at timestamptz,
    status text NOT NULL DEFAULT 'waiting'
        CHECK (status IN ('waiting', 'indexing', 'completed', 'error')),
    error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    indexed_at timestamptz,
    completed_at timestamptz,
    CHECK (NOT enabled OR status = 'completed'),
    UNIQUE (document_id, position) DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX segment_dataset ON segment (dataset_id);
CREATE INDEX segment_hash ON segment (hash);
CREATE INDEX segment_keywords ON segment USING gin (keywords);
-- The background sample of score fusion: the completed segments with the smallest hash of their id.
CREATE INDEX segment_background ON segment (dataset_id, hashtextextended(id, 0)) INCLUDE (id)
    WHERE status = 'completed';
