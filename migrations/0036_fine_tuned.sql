-- What was made elsewhere of a version's variant (fine-tuned, say) and pushed again names it.
-- NOT VALID: the constraint that is dropped in the same transaction, which allowed less, holds for every row.
ALTER TABLE lineage_edge DROP CONSTRAINT lineage_edge_kind_check;
ALTER TABLE lineage_edge ADD CONSTRAINT lineage_edge_kind_check
    CHECK (kind IN ('derived-from', 'distilled-from', 'fine-tuned-from', 'trained-on', 'calibrated-with',
                    'selected-with', 'evaluated-on')) NOT VALID;
