-- additive
-- The first names of an artifact that very many versions are (mlo_lineage_get), and a page of them all, without reading
-- the others: in the order in which they were given. The old index, the first column of this one, stays for programs
-- that are replaced later: a file without the first line may drop it.

CREATE INDEX variant_artifact_id ON variant (artifact, id);
