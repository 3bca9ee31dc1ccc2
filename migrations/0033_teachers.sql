-- A student's lineage names its teacher.
ALTER TABLE lineage_edge DROP CONSTRAINT lineage_edge_kind_check;
ALTER TABLE lineage_edge ADD CONSTRAINT lineage_edge_kind_check
    CHECK (kind IN ('derived-from', 'distilled-from', 'trained-on', 'calibrated-with', 'selected-with', 'evaluated-on'));
