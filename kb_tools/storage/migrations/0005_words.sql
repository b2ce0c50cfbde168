-- What a dataset's owner says of its words: which are kept whole, and which mean the same.

CREATE TABLE dataset_words (
    dataset_id text COLLATE "C" PRIMARY KEY REFERENCES dataset ON DELETE CASCADE,
    dictionary text[] NOT NULL DEFAULT '{}', -- as they were typed
    dictionary_fingerprint text NOT NULL DEFAULT '', -- of the folded words; '' without any
    synonyms jsonb NOT NULL DEFAULT '[]', -- groups of wordings, as they were typed
    synonyms_fingerprint text NOT NULL DEFAULT ''
);
