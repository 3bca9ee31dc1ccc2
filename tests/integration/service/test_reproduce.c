/* Variants made again: what is run, what is recorded, what gates see of it. */
#include "base/dsse.h"
#include "tests/integration/service/service_fixture.h"

static void assert_log(struct service_fixture *f, const char *prefix, int wanted)
{
    int have = micro_count(f->state, prefix);
    if (have != wanted)
        fail_msg("'%s': %d times instead of %d", prefix, have, wanted);
}

static enum mlo_status ask(struct service_fixture *f, int64_t version, const char *variant, int64_t *run)
{
    const struct mlo_reproduce_request request = {
        .project = f->project, .version = version, .variant = variant, .actor = &SYSTEM};
    memset(&f->err, 0, sizeof f->err);
    return mlo_run_reproduce(f->pg->conn, &request, run, &f->err);
}

static int64_t reproduce(struct service_fixture *f, int64_t version, const char *variant)
{
    int64_t run = 0;
    assert_mlo_ok(ask(f, version, variant, &run), &f->err);
    wait_run(f, run);
    return run;
}

/* The reproductions behind a variant, newest first; yours. */
static json_t *list(struct service_fixture *f, int64_t version, const char *variant)
{
    struct mlo_variant_info info;
    json_t *page = NULL;
    assert_mlo_ok(mlo_variant_find(f->pg->conn, version, variant, &info, &f->err), &f->err);
    assert_mlo_ok(mlo_reproduction_list(f->pg->conn, f->project, &info.artifact, NULL, &page, &f->err),
                  &f->err);
    json_t *out = json_incref(json_object_get(page, "items"));
    json_decref(page);
    return out;
}

static void demand_reproduced(struct service_fixture *f)
{
    const struct mlo_policy_scope scope = {f->project, 0};
    const int64_t none = 0;
    assert_mlo_ok(mlo_policy_set(f->pg->conn, &SYSTEM, &scope,
                                 "stages:\n  production:\n    - provenance: reproduced\n", "test", &none,
                                 NULL, &f->err),
                  &f->err);
}

/* What the gate says of putting the variant into production; the first condition, yours. */
static json_t *gate(struct service_fixture *f, const char *variant, bool holds)
{
    struct mlo_release_choice choice = {"any", variant};
    struct mlo_move move;
    json_t *decision = NULL;
    int64_t model = 0, seen = 0;
    assert_mlo_ok(mlo_model_find(f->pg->conn, f->project, "m", &model, &f->err), &f->err);
    struct mlo_promotion p = {.model_id = model,
                              .choices = &choice,
                              .choice_count = 1,
                              .stage = "production",
                              .reason = "test",
                              .if_match = &seen,
                              .decision = &decision};
    assert_mlo_ok(mlo_db_begin(f->pg->conn, &f->err), &f->err);
    enum mlo_status status = mlo_stage_promote(f->pg->conn, &SYSTEM, &p, &move, &f->err);
    assert_int_equal(status, holds ? MLO_OK : MLO_EGATE);
    status = mlo_db_end(f->pg->conn, MLO_ECANCELLED, &f->err); /* it stays where it is */
    assert_int_equal(status, MLO_ECANCELLED);
    json_t *row = json_incref(json_array_get(json_object_get(decision, "conditions"), 0));
    assert_true(mlo_json_bool(row, "holds", !holds) == holds);
    json_decref(decision);
    return row;
}

static void test_reproduce__the_same_bytes_are_recorded_and_open_the_gate(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    struct mlo_variant_info before, after;
    json_t *items, *item, *row;
    size_t i;
    demand_reproduced(f);
    start_worker(f, &w, 1);
    wait_run(f, submit(f, f->version, RECIPE_TINY, 0));
    assert_mlo_ok(mlo_variant_find(f->pg->conn, f->version, "tiny", &before, &f->err), &f->err);
    row = gate(f, "tiny", false);
    assert_non_null(strstr(mlo_json_str(row, "why", ""), "was not run again"));
    json_decref(row);
    int64_t run = reproduce(f, f->version, "tiny");
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_run(f, run, -1, "reproduces", "tiny");
    /* both steps ran again, and nothing was measured; no checkpoint was offered */
    assert_log(f, "start optimize", 2);
    assert_log(f, "start quantize", 2);
    assert_log(f, "start evaluate", 1);
    assert_log(f, "checkpoints quantize", 1);
    assert_count(f, "select count(*) from mlopt.job where state = 'reused'", 0);
    /* nothing is named, derived or replaced by it */
    assert_mlo_ok(mlo_variant_find(f->pg->conn, f->version, "tiny", &after, &f->err), &f->err);
    assert_true(before.id == after.id);
    assert_count(f, "select count(*) from mlopt.derivation", 2);
    assert_count(f, "select count(*) from mlopt.lineage_edge where kind = 'derived-from'", 2);
    assert_count(f, "select count(*) from mlopt.attestation", 4);
    assert_count(f,
                 "select count(*) from mlopt.audit where convert_from(body, 'UTF8') like "
                 "'%\"derivation.reproduce\"%\"matched\":true%'",
                 2);
    items = list(f, f->version, "tiny");
    assert_int_equal(json_array_size(items), 2);
    json_array_foreach(items, i, item)
    {
        assert_string_equal(mlo_json_str(item, "step", ""), i ? "optimize" : "quantize");
        assert_true(mlo_json_bool(item, "matched", false));
        assert_string_equal(mlo_json_str(item, "artifact", "a"), mlo_json_str(item, "made", "m"));
        assert_int_equal(mlo_json_i64(item, "run_id", 0), run);
        assert_true(mlo_str_starts(mlo_json_str(item, "program", ""), "mlopt "));
        assert_true(mlo_str_starts(mlo_json_str(item, "signer", ""), "ed25519:"));
    }
    json_decref(items);
    row = gate(f, "tiny", true);
    assert_int_equal(mlo_json_i64(json_object_get(row, "facts"), "derivations", 0), 2);
    json_decref(row);
    row = gate(f, "source", true);
    assert_string_equal(mlo_json_str(row, "why", ""), "it is the upload itself");
    json_decref(row);
}

/* The statement says that it was a reproduction, and of what. */
static void test_reproduce__the_statement_says_what_it_is(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    struct mlo_variant_info variant;
    json_t *items, *item;
    size_t i, said = 0;
    start_worker(f, &w, 1);
    wait_run(f, submit(f, f->version, RECIPE_DERIVE, 0));
    reproduce(f, f->version, "derived");
    stop_worker(&w);
    assert_mlo_ok(mlo_variant_find(f->pg->conn, f->version, "derived", &variant, &f->err), &f->err);
    assert_mlo_ok(mlo_attestation_list(f->pg->conn, f->project, &variant.artifact, &items, &f->err), &f->err);
    assert_int_equal(json_array_size(items), 2);
    json_array_foreach(items, i, item)
    {
        struct mlo_buf payload = MLO_BUF_INIT;
        struct mlo_public_key signer;
        char text[MLO_DIGEST_TEXT_SIZE];
        json_t *statement;
        assert_mlo_ok(mlo_dsse_verify(json_object_get(item, "envelope"), MLO_ATTEST_PAYLOAD, &payload,
                                      &signer, &f->err),
                      &f->err);
        assert_mlo_ok(mlo_json_parse(mlo_buf_str(&payload), payload.len, "statement", &statement, &f->err),
                      &f->err);
        const json_t *internal =
            json_object_get(json_object_get(json_object_get(statement, "predicate"), "buildDefinition"),
                            "internalParameters");
        const json_t *again = json_object_get(internal, "reproduces");
        if (again) {
            said++;
            assert_true(mlo_json_bool(again, "matched", false));
            assert_string_equal(mlo_json_str(again, "artifact", ""),
                                mlo_digest_text(&variant.artifact, text));
        }
        json_decref(statement);
        mlo_buf_clear(&payload);
    }
    assert_int_equal(said, 1);
    json_decref(items);
}

static void test_reproduce__other_bytes_fail_and_name_the_first_derivation(void **state)
{
    static const struct {
        const char *orders, *step;
        int jobs_run;
    } cases[] = {{"optimize.drift=1\nquantize.drift=1", "optimize", 1}, {"quantize.drift=1", "quantize", 2}};
    struct service_fixture *f = *state;
    struct test_worker w;
    start_worker(f, &w, 1);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        char name[16], where[40], key[MLO_DIGEST_TEXT_SIZE] = "";
        snprintf(name, sizeof name, "drifts%zu", i);
        int64_t version = add_version(f, name, cases[i].orders);
        int64_t first = submit(f, version, RECIPE_TINY, 0);
        wait_run(f, first);
        assert_run(f, first, -1, "state", "succeeded");
        int64_t run = reproduce(f, version, "tiny");
        assert_run(f, run, -1, "state", "failed");
        json_t *value = get_run(f, run), *was = get_run(f, first);
        const json_t *error = json_object_get(value, "error"), *jobs = json_object_get(value, "jobs");
        size_t bad = (size_t)cases[i].jobs_run - 1;
        snprintf(key, sizeof key, "%s",
                 mlo_json_str(json_array_get(json_object_get(was, "jobs"), bad), "derivation", "(none)"));
        snprintf(where, sizeof where, "step '%s'", cases[i].step);
        assert_string_equal(mlo_json_str(error, "where", ""), where);
        assert_non_null(strstr(mlo_json_str(error, "message", ""), key));
        assert_string_equal(mlo_json_str(error, "code", ""), "conflict");
        for (size_t j = 0; j < json_array_size(jobs); j++)
            assert_string_equal(mlo_json_str(json_array_get(jobs, j), "state", ""), j < bad    ? "succeeded"
                                                                                    : j == bad ? "failed"
                                                                                               : "cancelled");
        json_t *items = list(f, version, "tiny"), *newest = json_array_get(items, 0);
        assert_int_equal(json_array_size(items), cases[i].jobs_run);
        assert_false(mlo_json_bool(newest, "matched", true));
        assert_string_equal(mlo_json_str(newest, "derivation", ""), key);
        json_decref(items);
        json_decref(value);
        json_decref(was);
    }
    stop_worker(&w);
    /* what came out is kept, to be looked at */
    assert_count(f,
                 "select count(*) from mlopt.reproduction r join mlopt.project_blob b on b.digest = r.made "
                 "and b.project_id = r.project_id where r.made <> r.artifact",
                 2);
    assert_count(f, "select count(*) from mlopt.job where token is not null", 0);
    assert_count(f, "select count(*) from mlopt.attempt where ended_at is null", 0);
    assert_int_equal(scratch_left(f), 0);
}

/* The jobs have the room, the GPUs and the time that those had which are made again. */
static void test_reproduce__needs_what_was_needed(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = 0;
    start_worker_with(f, &w, (struct mlo_worker_options){.slots = 1});
    wait_run(f, submit(f, f->version,
                       "name: needy\ntarget: any\ndata: {calibrate: p/cal}\nneeds: {memory: 3MB, disk: "
                       "2MB}\ntimeout: 300\nsteps:\n  - optimize: {}\n  - quantize: {}\n",
                       0));
    stop_worker(&w);
    /* as if it had been made where there are GPUs */
    assert_count(f,
                 "with u as (update mlopt.job set gpus = position + 1, gpu = 'H100', estimated = '{disk}' "
                 "returning 1) select count(*) from u",
                 2);
    assert_mlo_ok(ask(f, f->version, "needy", &run), &f->err);
    assert_count(f,
                 "select count(*) from mlopt.job o join mlopt.job n using (position, memory_bytes, "
                 "disk_bytes, gpus, gpu, timeout_s, estimated, max_attempts, target, exclusive) "
                 "where o.run < n.run and memory_bytes = 3000000 and timeout_s = 300",
                 2);
}

/* A later time that gave other bytes closes the gate again. */
static void test_reproduce__the_newest_time_counts(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t seven;
    f->version = add_version(f, "m", "optimize.drift=1");
    demand_reproduced(f);
    start_worker(f, &w, 1);
    wait_run(f, submit(f, f->version, RECIPE_DERIVE, 0));
    reproduce(f, f->version, "derived");
    stop_worker(&w);
    json_t *row = gate(f, "derived", false);
    assert_non_null(strstr(mlo_json_str(row, "why", ""), "the step optimize gave sha256:"));
    json_decref(row);
    /* as if one after it had given the same */
    seven = count_rows(
        f,
        "with a as (insert into mlopt.reproduction (project_id, derivation, parent, artifact, made, "
        "attestation, machine_class, program, run_id, job_id, requested_by) select project_id, derivation, "
        "parent, artifact, artifact, attestation, machine_class, program, run_id, 7, requested_by from "
        "mlopt.reproduction returning job_id) select job_id from a");
    assert_int_equal(seven, 7);
    json_decref(gate(f, "derived", true));
}

/* A recorded decision is an input: nothing is chosen anew. */
static void test_reproduce__follows_the_recorded_decision(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t version = add_version(f, "choosy", "quantize.decision={\"given_back\":[]}");
    start_worker(f, &w, 1);
    wait_run(f, submit(f, version, RECIPE_CHOOSE, 0));
    int64_t run = reproduce(f, version, "chosen");
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_log(f, "followed quantize", 1);
    assert_log(f, "chose quantize", 0);
    assert_log(f, "followed optimize", 0);
    assert_count(f,
                 "select count(*) from mlopt.reproduction r join mlopt.variant v on v.derivation = "
                 "r.derivation where v.name = 'chosen' and r.made = r.artifact",
                 1);
}

static void test_reproduce__refuses_what_cannot_be_made_again(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = 0;
    assert_int_equal(ask(f, f->version, "source", &run), MLO_EINVAL);
    assert_int_equal(ask(f, f->version, "nothing", &run), MLO_ENOTFOUND);
    start_worker(f, &w, 1);
    wait_run(f, submit(f, f->version, RECIPE_TINY, 0));
    stop_worker(&w);
    /* as if it had been made by another revision of a pass */
    assert_count(
        f,
        "with u as (update mlopt.derivation set canonical = regexp_replace(canonical, "
        "'\"passes\":\\{\"([^\"]*)\":', '\"passes\":{\"\\1\":9') where step = 'quantize' returning 1) "
        "select count(*) from u",
        1);
    assert_int_equal(ask(f, f->version, "tiny", &run), MLO_EUNSUPPORTED);
    assert_non_null(strstr(f->err.message, "its passes."));
    assert_non_null(strstr(f->err.message, "was recorded"));
    assert_string_equal(f->err.where, "step 'quantize'");
    assert_count(f, "select count(*) from mlopt.run where reproduces is not null", 0);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_reproduce__the_same_bytes_are_recorded_and_open_the_gate),
        SERVICE_TEST(test_reproduce__the_statement_says_what_it_is),
        SERVICE_TEST(test_reproduce__other_bytes_fail_and_name_the_first_derivation),
        SERVICE_TEST(test_reproduce__needs_what_was_needed),
        SERVICE_TEST(test_reproduce__the_newest_time_counts),
        SERVICE_TEST(test_reproduce__follows_the_recorded_decision),
        SERVICE_TEST(test_reproduce__refuses_what_cannot_be_made_again),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
