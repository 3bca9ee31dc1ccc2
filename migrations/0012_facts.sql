-- What versions say about themselves: training code, parameters, metrics, tags, datasets. The manifest holds it; these
-- rows are how it is found. Each version also has its model, number and author here, so that a search reads one table.

CREATE TABLE fact_name (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id bigint NOT NULL REFERENCES project,
    kind       text NOT NULL CHECK (kind IN ('param', 'metric', 'tag', 'code', 'dataset', 'licence', 'model', 'version',
                                             'author')),
    name       text COLLATE "C" NOT NULL,                -- '' where the kind has no names
    UNIQUE (project_id, kind, name)
);

CREATE TABLE version_fact (
    version_id bigint NOT NULL REFERENCES version,
    name_id    bigint NOT NULL REFERENCES fact_name,
    text       text COLLATE "C" NOT NULL,                -- '' of a metric
    number     double precision CHECK (abs(number) < 'Infinity'),  -- NULL: it is none
    PRIMARY KEY (version_id, name_id, text)
);
CREATE INDEX version_fact_text ON version_fact (name_id, text, version_id);
CREATE INDEX version_fact_number ON version_fact (name_id, number, version_id) WHERE number IS NOT NULL;

-- what is there already
INSERT INTO fact_name (project_id, kind, name)
    SELECT DISTINCT m.project_id, k.kind, '' FROM version v JOIN model m ON m.id = v.model_id
    CROSS JOIN (VALUES ('author'), ('model'), ('version')) k (kind);
INSERT INTO version_fact (version_id, name_id, text, number)
    SELECT v.id, n.id, CASE n.kind WHEN 'author' THEN v.created_by WHEN 'model' THEN m.name ELSE '' END,
           CASE n.kind WHEN 'version' THEN v.number END
    FROM version v JOIN model m ON m.id = v.model_id JOIN fact_name n ON n.project_id = m.project_id;

-- a version names the data that it was trained on
ALTER TABLE lineage_edge DROP CONSTRAINT lineage_edge_kind_check;
ALTER TABLE lineage_edge ADD CONSTRAINT lineage_edge_kind_check
    CHECK (kind IN ('derived-from', 'trained-on', 'calibrated-with', 'selected-with', 'evaluated-on'));

DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['fact_name', 'version_fact'] LOOP
        EXECUTE format('CREATE TRIGGER history_row BEFORE UPDATE OR DELETE ON %I FOR EACH ROW '
                       'EXECUTE FUNCTION refuse_change()', t);
        EXECUTE format('CREATE TRIGGER history_table BEFORE TRUNCATE ON %I FOR EACH STATEMENT '
                       'EXECUTE FUNCTION refuse_change()', t);
    END LOOP;
END $$;

GRANT SELECT, INSERT ON fact_name, version_fact TO mlopt_server;
