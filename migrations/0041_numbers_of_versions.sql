-- additive
-- Whether a version has a number in a range, asked of many versions that lie all over the table: in here the numbers under
-- one name are together, and the table is not read. Each version is above 0: a statement that does not say so is not given
-- this index, which has a name's numbers in no order to walk. While it is made, new versions wait and reads go on.

CREATE INDEX version_fact_version ON version_fact (name_id, version_id, number) WHERE number IS NOT NULL AND version_id > 0;
