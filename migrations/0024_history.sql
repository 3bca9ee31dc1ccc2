-- How long steps took, for who plans a run: the newest of a step that were worked, not reused.
CREATE INDEX job_history ON job (step, id DESC) WHERE state = 'succeeded';
