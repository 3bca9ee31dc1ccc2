/* Workers with the micro step: the real protocol, real processes, real blobs. */
#include "base/dsse.h"
#include "pipeline/service/job_log_impl.h"
#include "registry/attest.h"
#include "tests/integration/service/service_fixture.h"

static void assert_count(struct service_fixture *f, const char *sql, int64_t wanted)
{
    int64_t have = count_rows(f, sql);
    if (have != wanted)
        fail_msg("%s: %lld instead of %lld", sql, (long long)have, (long long)wanted);
}

/* Nothing is left behind: leases, scratch, attempts without an end. */
static void assert_clean(struct service_fixture *f)
{
    assert_count(f, "select count(*) from mlopt.job where token is not null or lease_until is not null", 0);
    assert_count(f, "select count(*) from mlopt.attempt where ended_at is null", 0);
    assert_int_equal(scratch_left(f), 0);
}

static void wait_for_log(struct service_fixture *f, const char *line, int count)
{
    wait_until(micro_count(f->state, line) >= count);
}

static void test_worker__completes_a_run(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    for (int i = 0; i < 4; i++)
        assert_run(f, run, i, "state", "succeeded");
    assert_count(f, "select count(*) from mlopt.derivation", 2);
    assert_count(f, "select count(*) from mlopt.attempt where cpu_s > 0 and read_bytes > 0 and gpu_s = 0", 4);
    assert_count(f, "select count(*) from mlopt.attempt where written_bytes > 0",
                 3); /* all but the evaluation */
    assert_count(f, "select count(*) from mlopt.variant where name = 'tiny' and run_id is not null", 1);
    assert_count(
        f, "select count(*) from mlopt.evidence where data_role = 'evaluate' and dataset is not null", 2);
    assert_count(
        f, "select count(*) from mlopt.evidence where comparison = 'difference' and baseline is not null", 1);
    assert_count(f, "select count(*) from mlopt.evidence where comparison = 'ratio' and samples is not null",
                 1);
    assert_count(f, "select count(*) from mlopt.lineage_edge where kind = 'derived-from'", 2);
    assert_count(f, "select count(*) from mlopt.lineage_edge where kind = 'calibrated-with'", 1);
    assert_count(f, "select count(*) from mlopt.lineage_edge where kind = 'evaluated-on'", 2);
    assert_count(f, "select count(*) from mlopt.worker where state = 'stopped'", 1);
    /* which samples the two datasets have is known now */
    assert_count(f,
                 "select count(*) from mlopt.dataset_samples s join mlopt.dataset_version v on "
                 "v.manifest_digest = s.dataset where s.count = 1",
                 2);
    /* the variant is what the second step made of what the first one made */
    struct mlo_variant_info variant;
    struct mlo_buf text = MLO_BUF_INIT;
    assert_mlo_ok(mlo_variant_find(f->pg->conn, f->version, "tiny", &variant, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_read(f->blobs, &variant.artifact, 1 << 20, &text, &f->err), &f->err);
    assert_non_null(strstr(mlo_buf_str(&text), "# optimize\n# quantize\n"));
    mlo_buf_clear(&text);
    json_t *value = get_run(f, run), *report;
    report = json_object_get(json_array_get(json_object_get(value, "jobs"), 1), "report");
    assert_string_equal(mlo_json_str(report, "did", ""), "quantize");
    json_decref(value);
    assert_clean(f);
}

/* The signature as openssl sees it, from the envelope's parts alone: no code of ours but the encoding. */
static void check_with_openssl(struct service_fixture *f, const json_t *envelope,
                               const struct mlo_buf *payload)
{
    const char *sig = mlo_json_str(json_array_get(json_object_get(envelope, "signatures"), 0), "sig", "");
    struct mlo_buf pae = MLO_BUF_INIT, bytes = MLO_BUF_INIT, command = MLO_BUF_INIT, out = MLO_BUF_INIT;
    int code = -1;
    char *pae_path = mlo_fs_join(f->dir, "pae", NULL), *sig_path = mlo_fs_join(f->dir, "sig", NULL);
    mlo_buf_printf(&pae, "DSSEv1 28 application/vnd.in-toto+json %zu %s", payload->len, mlo_buf_str(payload));
    assert_true(mlo_base64_decode(sig, strlen(sig), &bytes));
    assert_mlo_ok(mlo_fs_write_atomic(pae_path, pae.data, pae.len, &f->err), &f->err);
    assert_mlo_ok(mlo_fs_write_atomic(sig_path, bytes.data, bytes.len, &f->err), &f->err);
    mlo_buf_printf(
        &command,
        "openssl pkey -in '%s/plan.key' -pubout -out '%s/pub.pem' && openssl pkeyutl -verify -pubin -inkey "
        "'%s/pub.pem' -rawin -in '%s' -sigfile '%s'",
        f->work, f->dir, f->dir, pae_path, sig_path);
    const char *const argv[] = {"/bin/sh", "-c", mlo_buf_str(&command), NULL};
    struct mlo_process_options options = MLO_PROCESS_OPTIONS_INIT;
    options.argv = argv;
    assert_mlo_ok(mlo_process_run(&options, 120000, 1 << 16, &out, &code, &f->err), &f->err);
    if (code != 0)
        fail_msg("openssl: %d %s", code, mlo_buf_str(&out));
    mlo_buf_clear(&pae);
    mlo_buf_clear(&bytes);
    mlo_buf_clear(&command);
    mlo_buf_clear(&out);
    free(pae_path);
    free(sig_path);
}

static void test_worker__signs_how_it_made_what_it_made(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    struct mlo_variant_info variant, source;
    json_t *items, *item;
    size_t i;
    char parent[MLO_DIGEST_TEXT_SIZE];
    start_worker(f, &w, 1);
    wait_run(f, submit(f, f->version, RECIPE_TINY, 0));
    wait_run(f, submit(f, f->version, RECIPE_TINY, 0)); /* reused: nobody made anything */
    stop_worker(&w);
    assert_mlo_ok(mlo_variant_find(f->pg->conn, f->version, "tiny", &variant, &f->err), &f->err);
    assert_mlo_ok(mlo_variant_find(f->pg->conn, f->version, "source", &source, &f->err), &f->err);
    assert_mlo_ok(mlo_attestation_list(f->pg->conn, f->project, &variant.artifact, &items, &f->err), &f->err);
    assert_int_equal(json_array_size(items), 2); /* optimize, then quantize */
    mlo_digest_hex(&source.artifact, parent);
    json_array_foreach(items, i, item)
    {
        struct mlo_buf payload = MLO_BUF_INIT;
        struct mlo_public_key signer;
        struct mlo_digest key;
        char text[MLO_DIGEST_TEXT_SIZE], name[MLO_PUBLIC_KEY_TEXT_SIZE];
        json_t *statement, *envelope = json_object_get(item, "envelope");
        assert_mlo_ok(mlo_dsse_verify(envelope, MLO_ATTEST_PAYLOAD, &payload, &signer, &f->err), &f->err);
        assert_string_equal(mlo_public_key_text(&signer, name), mlo_json_str(item, "signer", ""));
        check_with_openssl(f, envelope, &payload);
        assert_mlo_ok(mlo_json_parse(mlo_buf_str(&payload), payload.len, "statement", &statement, &f->err),
                      &f->err);
        const json_t *predicate = json_object_get(statement, "predicate"),
                     *build = json_object_get(predicate, "buildDefinition"),
                     *given = json_object_get(build, "externalParameters"),
                     *inputs = json_object_get(build, "resolvedDependencies"),
                     *subject = json_array_get(json_object_get(statement, "subject"), 0);
        /* each is made of what the one before made */
        assert_string_equal(mlo_json_str(json_object_get(json_array_get(inputs, 0), "digest"), "sha256", ""),
                            parent);
        snprintf(parent, sizeof parent, "%s", mlo_json_str(json_object_get(subject, "digest"), "sha256", ""));
        assert_mlo_ok(mlo_json_digest(json_object_get(given, "derivation"), &key, &f->err), &f->err);
        assert_string_equal(mlo_digest_text(&key, text), mlo_json_str(given, "derivation_key", ""));
        assert_string_equal(text, mlo_json_str(item, "derivation", ""));
        assert_non_null(strstr(mlo_json_str(given, "recipe", ""), "\"name\":\"tiny\""));
        assert_true(
            json_object_size(json_object_get(json_object_get(build, "internalParameters"), "machine")) > 0);
        /* another byte, another key: it does not hold */
        json_t *changed = json_deep_copy(envelope);
        char *body = strdup(mlo_json_str(changed, "payload", ""));
        body[40] = body[40] == 'A' ? 'B' : 'A';
        json_object_set_new(changed, "payload", json_string(body));
        mlo_buf_reset(&payload);
        assert_int_not_equal(mlo_dsse_verify(changed, MLO_ATTEST_PAYLOAD, &payload, &signer, &f->err),
                             MLO_OK);
        free(body);
        json_decref(changed);
        json_decref(statement);
        mlo_buf_clear(&payload);
    }
    char hex[MLO_DIGEST_TEXT_SIZE];
    assert_string_equal(parent, mlo_digest_hex(&variant.artifact, hex));
    json_decref(items);
    /* what was signed stays */
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(f->worker, &conn, &f->err), &f->err);
    assert_mlo_status(mlo_db_exec_text(conn, "update mlopt.attestation set envelope = ''", &f->err),
                      MLO_EFORBIDDEN, &f->err);
    mlo_db_release(conn);
}

static void test_worker__reuses_derivations_and_measures_afresh(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    start_worker(f, &w, 1);
    int64_t first = submit(f, f->version, RECIPE_TINY, 0);
    wait_run(f, first);
    int64_t second = submit(f, f->version, RECIPE_TINY, 0);
    wait_run(f, second);
    stop_worker(&w);
    assert_run(f, second, -1, "state", "succeeded");
    assert_int_equal(micro_count(f->state, "start optimize"), 1);
    assert_int_equal(micro_count(f->state, "start quantize"), 1);
    assert_int_equal(micro_count(f->state, "start evaluate"), 2);
    assert_int_equal(micro_count(f->state, "start benchmark"), 2);
    assert_count(f, "select count(*) from mlopt.job where state = 'reused'", 2);
    assert_count(f, "select count(*) from mlopt.evidence", 8);
    json_t *value = get_run(f, second), *job = json_array_get(json_object_get(value, "jobs"), 0);
    assert_true(mlo_json_bool(job, "reused", false));
    assert_string_equal(mlo_json_str(job, "state", ""), "succeeded");
    json_decref(value);
    assert_clean(f);
}

static void test_worker__two_runs_share_a_derivation_in_flight(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker a, b;
    int64_t version = add_version(f, "slow", "optimize.sleep_ms=600");
    int64_t runs[3];
    for (int i = 0; i < 3; i++)
        runs[i] = submit(f, version, RECIPE_TINY, 0);
    start_worker(f, &a, 2);
    start_worker(f, &b, 2);
    for (int i = 0; i < 3; i++)
        wait_run(f, runs[i]);
    stop_worker(&a);
    stop_worker(&b);
    for (int i = 0; i < 3; i++)
        assert_run(f, runs[i], -1, "state", "succeeded");
    assert_int_equal(micro_count(f->state, "start optimize"), 1);
    assert_int_equal(micro_count(f->state, "start quantize"), 1);
    assert_count(f, "select count(*) from mlopt.job where state = 'reused'", 4);
    assert_clean(f);
}

static void test_worker__a_crashed_child_is_tried_again(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "crash", "quantize.crashes=1"), RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_int_equal(job_i64(f, run, 1, "attempt"), 2);
    json_t *value = get_run(f, run);
    json_t *attempts = json_object_get(json_array_get(json_object_get(value, "jobs"), 1), "attempts");
    json_t *error = json_object_get(json_array_get(attempts, 0), "error");
    assert_string_equal(mlo_json_str(json_array_get(attempts, 0), "outcome", ""), "retried");
    assert_non_null(strstr(mlo_json_str(error, "message", ""), "signal 4"));
    assert_non_null(strstr(mlo_json_str(error, "hint", ""), "about to crash"));
    json_decref(value);
    assert_clean(f);
}

static void test_worker__a_bad_model_fails_once(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "bad", "optimize.fail=bad-format"), RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "failed");
    assert_int_equal(micro_count(f->state, "start optimize"), 1);
    json_t *value = get_run(f, run), *error = json_object_get(value, "error");
    assert_string_equal(mlo_json_str(error, "code", ""), "bad-format");
    assert_string_equal(mlo_json_str(error, "message", ""), "told to fail");
    assert_string_equal(mlo_json_str(error, "where", ""), "line 1");
    json_decref(value);
    assert_clean(f);
}

static void test_worker__refuses_a_result_outside_the_scratch_folder(void **state)
{
    struct service_fixture *f = *state;
    static const char *const elsewhere[] = {"/etc/passwd", "../../../../../../etc/passwd", "in"};
    struct test_worker w;
    start_worker(f, &w, 1);
    for (size_t i = 0; i < MLO_COUNT(elsewhere); i++) {
        char name[16], orders[128];
        snprintf(name, sizeof name, "thief%zu", i);
        snprintf(orders, sizeof orders, "optimize.artifact=%s", elsewhere[i]);
        int64_t run = submit(f, add_version(f, name, orders), RECIPE_DERIVE, 0);
        wait_run(f, run);
        assert_run(f, run, -1, "state", "failed");
        assert_int_equal(job_i64(f, run, 0, "attempt"), 1);
    }
    stop_worker(&w);
    assert_count(f, "select count(*) from mlopt.derivation", 0);
    assert_clean(f);
}

/* The worker's signature says that the step compile made the plan here, of the model that it was given. */
static void test_worker__signs_only_what_it_compiled(void **state)
{
    struct service_fixture *f = *state;
    static const struct {
        const char *name, *recipe, *step;
        int kind;
        const char *message;
    } cases[] = {{"thief", RECIPE_DERIVE, "optimize", PLAN_RIGHT, "not for it to make"},
                 {"other", RECIPE_COMPILE, "compile", PLAN_OF_ANOTHER, "a plan of another model"},
                 {"forger", RECIPE_COMPILE, "compile", PLAN_FORGED, "another fingerprint"},
                 {"twice", RECIPE_COMPILE, "compile", PLAN_TWICE, "2 plans; 1 were asked for"},
                 {"huge", RECIPE_COMPILE, "compile", PLAN_HUGE, "9663676552 bytes; 8589934592 can be kept"}};
    struct test_worker w;
    char orders[64];
    start_worker(f, &w, 1);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        snprintf(orders, sizeof orders, "%s.plan=%d", cases[i].step, cases[i].kind);
        int64_t run = submit(f, add_version(f, cases[i].name, orders), cases[i].recipe, 0);
        wait_run(f, run);
        assert_run(f, run, -1, "state", "failed");
        json_t *value = get_run(f, run);
        const char *message = mlo_json_str(json_object_get(value, "error"), "message", "");
        if (!strstr(message, cases[i].message))
            fail_msg("%s: %s", cases[i].name, message);
        json_decref(value);
    }
    assert_count(f, "select count(*) from mlopt.plan", 0);
    snprintf(orders, sizeof orders, "compile.plan=%d", PLAN_RIGHT);
    int64_t run = submit(f, add_version(f, "honest", orders), RECIPE_COMPILE, 0);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_count(f,
                 "select count(*) from mlopt.plan p join mlopt.blob b on b.digest = p.blob "
                 "where b.size = p.size and p.size > 4096 + 64 and p.signer like 'ed25519:%'",
                 1);
    assert_clean(f);
}

/* The report of the version's variant, as its blob has it. */
static json_t *stored_report(struct service_fixture *f, int64_t version)
{
    struct mlo_variant_info variant;
    struct mlo_digest blob;
    uint64_t size;
    struct mlo_buf text = MLO_BUF_INIT;
    json_t *out;
    assert_mlo_ok(mlo_variant_find(f->pg->conn, version, "told", &variant, &f->err), &f->err);
    assert_mlo_ok(
        mlo_variant_report_find(f->pg->conn, f->project, &variant.artifact, 0, &blob, &size, &f->err),
        &f->err);
    assert_mlo_ok(mlo_blob_read(f->blobs, &blob, 1 << 20, &text, &f->err), &f->err);
    assert_int_equal(text.len, size);
    assert_mlo_ok(mlo_json_parse(mlo_buf_str(&text), text.len, "the report", &out, &f->err), &f->err);
    mlo_buf_clear(&text);
    return out;
}

static void test_worker__a_report_knows_the_steps_before_it(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    start_worker(f, &w, 1);
    for (int again = 0; again < 2; again++) { /* the second time the derivations are reused */
        int64_t run = submit(f, f->version, RECIPE_REPORT, 0);
        wait_run(f, run);
        assert_run(f, run, -1, "state", "succeeded");
        json_t *told = stored_report(f, f->version);
        const json_t *history = json_object_get(told, "history"), *last = json_array_get(history, 1);
        assert_int_equal(json_array_size(history), 2);
        assert_string_equal(mlo_json_str(json_array_get(history, 0), "step", ""), "optimize");
        assert_string_equal(mlo_json_str(last, "step", ""), "quantize");
        assert_string_equal(mlo_json_str(json_object_get(last, "options"), "scheme", ""), "uint8");
        assert_string_equal(mlo_json_str(json_object_get(last, "report"), "did", ""), "quantize");
        /* what the last of them was given: what the first one made */
        assert_true(mlo_str_ends(mlo_json_str(told, "parent", ""), "/in/parent/model.onnx"));
        assert_non_null(mlo_json_str(told, "calibrate", NULL));
        assert_non_null(mlo_json_str(told, "evaluate", NULL));
        json_decref(told);
    }
    stop_worker(&w);
    assert_count(f, "select count(*) from mlopt.report", 2);
    json_t *variants;
    assert_mlo_ok(mlo_variant_list(f->pg->conn, f->version, &variants, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(json_array_get(variants, 1), "reports")), 2);
    assert_int_equal(json_array_size(json_object_get(json_array_get(variants, 0), "reports")), 0);
    json_decref(variants);
    assert_clean(f);
}

static void test_worker__keeps_no_document_of_another_step_or_size(void **state)
{
    struct service_fixture *f = *state;
    static const struct {
        const char *name, *recipe, *orders, *message;
    } cases[] = {{"stranger", RECIPE_OBSERVE, "evaluate.document=1", "not for it to make"},
                 {"novel", RECIPE_REPORT, "report.huge=1", "more than 32 MiB"},
                 {"decider", RECIPE_REPORT, "quantize.decision={}", "a decision, which is not for it"}};
    struct test_worker w;
    start_worker(f, &w, 1);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        int64_t run = submit(f, add_version(f, cases[i].name, cases[i].orders), cases[i].recipe, 0);
        wait_run(f, run);
        assert_run(f, run, -1, "state", "failed");
        json_t *value = get_run(f, run);
        const char *message = mlo_json_str(json_object_get(value, "error"), "message", "");
        if (!strstr(message, cases[i].message))
            fail_msg("%s: %s", cases[i].name, message);
        json_decref(value);
    }
    stop_worker(&w);
    assert_count(f, "select count(*) from mlopt.report", 0);
    assert_clean(f);
}

/* The decision is a blob of the project, its digest part of the derivation that names the variant. */
static void test_worker__what_a_step_chose_enters_the_derivation(void **state)
{
    struct service_fixture *f = *state;
    static const char chosen[] = "{\"given_back\":[]}";
    struct test_worker w;
    struct mlo_digest digest;
    struct mlo_buf text = MLO_BUF_INIT;
    char named[MLO_DIGEST_TEXT_SIZE], sql[768];
    int64_t version = add_version(f, "choosy", "quantize.decision={\"given_back\":[]}");
    mlo_digest_of(chosen, strlen(chosen), &digest);
    mlo_digest_text(&digest, named);
    start_worker(f, &w, 1);
    for (int again = 0; again < 2; again++) { /* the second time it is reused, with its decision */
        int64_t run = submit(f, version, RECIPE_CHOOSE, 0);
        wait_run(f, run);
        assert_run(f, run, -1, "state", "succeeded");
        json_t *value = get_run(f, run), *job = json_array_get(json_object_get(value, "jobs"), 1);
        const json_t *decision = json_object_get(json_object_get(job, "report"), "decision");
        assert_string_equal(mlo_json_str(decision, "blob", ""), named);
        assert_int_equal(mlo_json_i64(decision, "size", 0), strlen(chosen));
        assert_true(mlo_json_bool(job, "reused", false) == (again > 0));
        json_decref(value);
    }
    /* a step that chose nothing names nothing, whatever its child says */
    int64_t plain = submit(f, f->version, RECIPE_CHOOSE, 0);
    wait_run(f, plain);
    json_t *value = get_run(f, plain);
    assert_null(json_object_get(json_object_get(json_array_get(json_object_get(value, "jobs"), 1), "report"),
                                "decision"));
    json_decref(value);
    stop_worker(&w);
    assert_mlo_ok(mlo_blob_read(f->blobs, &digest, 1 << 10, &text, &f->err), &f->err);
    assert_string_equal(mlo_buf_str(&text), chosen);
    mlo_buf_clear(&text);
    assert_mlo_ok(mlo_blob_linked(f->pg->conn, f->project, &digest, NULL, &f->err), &f->err);
    snprintf(
        sql, sizeof sql,
        "select count(*) from mlopt.derivation d where canonical::json->'decisions'->>0 = '%s' and "
        "exists (select from mlopt.variant v where v.name = 'chosen' and v.derivation = d.key) and exists "
        "(select from mlopt.lineage_edge e where e.kind = 'selected-with' and e.derivation = d.key)",
        named);
    assert_count(f, sql, 1);
    assert_clean(f);
}

/* Each file's bytes are read once; what was made is read when it is made. */
static void test_worker__reads_signatures_once(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    struct mlo_variant_info variant;
    json_t *found;
    int64_t version = add_version(f, "signed", "all.signature=x"),
            wrong = add_version(f, "wrong", "all.signature=-");
    start_worker(f, &w, 1);
    wait_run(f, submit(f, version, RECIPE_TINY, 0));
    wait_run(f, submit(f, version, RECIPE_TINY, 0));
    wait_run(f, submit(f, wrong, RECIPE_DERIVE, 0));
    stop_worker(&w);
    assert_int_equal(micro_count(f->state, "asked source"), 2); /* of the two models */
    assert_int_equal(micro_count(f->state, "asked model"), 0);  /* read when it was made */
    assert_int_equal(micro_count(f->state, "asked artifact"), 3);
    assert_int_equal(micro_count(f->state, "asked labels"), 0); /* there are none */
    /* what is no signature is left out, and fails nothing */
    assert_count(f, "select count(*) from mlopt.signature", 3);
    assert_count(f, "select count(*) from mlopt.run where state <> 'succeeded'", 0);
    assert_mlo_ok(mlo_variant_find(f->pg->conn, version, "tiny", &variant, &f->err), &f->err);
    assert_mlo_ok(mlo_signature_get(f->pg->conn, version, &variant.artifact, &found, &f->err), &f->err);
    const json_t *input = json_array_get(json_object_get(json_object_get(found, "read"), "inputs"), 0);
    assert_string_equal(mlo_json_str(input, "name", ""), "x");
    json_decref(found);
    assert_clean(f);
}

/* The clock ended the search: what it came to is named by its decision, and is no answer to the same question
 * asked again. */
static void test_worker__an_unfinished_choice_is_not_reused(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t version = add_version(f, "hasty", "quantize.decision={}\nquantize.unfinished=1");
    start_worker(f, &w, 1);
    for (int again = 0; again < 2; again++) {
        int64_t run = submit(f, version, RECIPE_CHOOSE, 0);
        wait_run(f, run);
        assert_run(f, run, -1, "state", "succeeded");
    }
    stop_worker(&w);
    assert_int_equal(micro_count(f->state, "start quantize"), 2);
    assert_count(f, "select count(*) from mlopt.derivation where step = 'quantize'", 1);
    assert_clean(f);
}

static void test_worker__a_failed_expectation_fails_the_run(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "worse", "evaluate.drop_percent=3"), RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "failed");
    assert_run(f, run, 3, "state", "succeeded");
    assert_count(f, "select count(*) from mlopt.evidence", 4);
    assert_clean(f);
}

static void test_worker__cancellation_stops_a_running_step(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "slow", "optimize.hold=1"), RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_for_log(f, "start optimize", 1);
    assert_mlo_ok(mlo_run_cancel(f->pg->conn, &SYSTEM, run, NULL, &f->err), &f->err);
    int64_t next = submit(f, f->version, RECIPE_DERIVE, 0);
    wait_run(f, next); /* the slot is free again, though the step would work on */
    stop_worker(&w);
    assert_run(f, run, -1, "state", "cancelled");
    assert_int_equal(micro_count(f->state, "end optimize"), 1); /* that of `next` */
    assert_clean(f);
}

static void test_worker__stopping_hands_the_job_back(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "slow", "optimize.hold=1"), RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_for_log(f, "start optimize", 1);
    stop_worker(&w); /* it does not wait for the step, which would not end */
    assert_run(f, run, 0, "state", "queued");
    assert_int_equal(job_i64(f, run, 0, "attempt"), 0);
    assert_clean(f);
    release_steps(f);
    start_worker(f, &w, 1);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_int_equal(job_i64(f, run, 0, "attempt"), 1);
    assert_clean(f);
}

static void test_worker__holds_no_transaction_while_working(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "slow", "optimize.hold=1"), RECIPE_DERIVE, 0);
    static const char progress_sql[] = "select count(*) from mlopt.run_event where kind = 'progress'";
    uint64_t begin_ns = mlo_clock_ns();
    start_worker(f, &w, 1);
    wait_until(count_rows(f, progress_sql) >= 2);
    /* the step works: a progress update in passing is fine, a transaction around the work would never be away
     */
    wait_until(count_rows(f, "select (count(*) > 0 and count(xact_start) = 0)::int from pg_stat_activity "
                             "where usename = 'mlopt_worker'") != 0);
    assert_int_equal(micro_count(f->state, "end optimize"), 0);
    release_steps(f);
    wait_run(f, run);
    uint64_t took_ms = (mlo_clock_ns() - begin_ns) / 1000000;
    stop_worker(&w);
    /* the step tells its progress every few milliseconds; at most every half second reaches the database */
    int64_t progress = count_rows(f, progress_sql);
    if ((uint64_t)progress > took_ms / 500 + 1)
        fail_msg("%lld progress events in %llu ms", (long long)progress, (unsigned long long)took_ms);
}

/* Start and end times of a step in the micro step's log, the n-th of each. */
static uint64_t log_time(struct service_fixture *f, const char *prefix)
{
    struct mlo_buf text = MLO_BUF_INIT;
    char *path = mlo_fs_join(f->state, "log", NULL);
    assert_mlo_ok(mlo_fs_read(path, 1 << 20, &text, &f->err), &f->err);
    const char *at = strstr(mlo_buf_str(&text), prefix);
    assert_non_null(at);
    uint64_t time = strtoull(at + strlen(prefix), NULL, 10);
    mlo_buf_clear(&text);
    free(path);
    return time;
}

static void test_worker__a_benchmark_has_the_machine_to_itself(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker a, b;
    static const char recipe_bench[] = "name: b\ntarget: any\nsteps:\n  - benchmark: {batch: [1]}\n";
    int64_t other = submit(f, add_version(f, "slow", "evaluate.sleep_ms=500"), RECIPE_OBSERVE, 0);
    int64_t bench = submit(f, add_version(f, "bench", "benchmark.sleep_ms=300"), recipe_bench, 0);
    start_worker(f, &a, 1);
    start_worker(f, &b, 1);
    wait_run(f, other);
    wait_run(f, bench);
    stop_worker(&a);
    stop_worker(&b);
    uint64_t eval_start = log_time(f, "start evaluate "), eval_end = log_time(f, "end evaluate ");
    uint64_t bench_start = log_time(f, "start benchmark "), bench_end = log_time(f, "end benchmark ");
    assert_true(bench_start > eval_end || eval_start > bench_end);
    /* what else the machine did meanwhile stands beside what was measured, and beside nothing else */
    json_t *value = get_run(f, bench), *job = json_array_get(json_object_get(value, "jobs"), 0);
    const json_t *load = json_object_get(json_object_get(job, "report"), "load");
    assert_true(mlo_json_f64(load, "seconds", 0) >= 0.3);
    assert_true(mlo_json_f64(load, "other_cpus", -1) >= 0 && mlo_json_f64(load, "own_cpus", -1) >= 0);
    assert_true(mlo_json_f64(load, "own_cpus", 99) < 99 && mlo_json_i64(load, "cpus", 0) > 0);
    json_decref(value);
    value = get_run(f, other);
    job = json_array_get(json_object_get(value, "jobs"), 0);
    assert_null(json_object_get(json_object_get(job, "report"), "load"));
    json_decref(value);
    assert_clean(f);
}

/* What two jobs of a run are, one ready and one that waits for it, and whether a worker stays for them that
 * has 4 GB and 10 GB of disk: one of the CPU alone; one with --target never; one with two H100. */
static void test_worker__stays_for_what_it_could_have(void **state)
{
    static const struct {
        const char *set; /* of both jobs */
        bool plain, own, gpus;
    } cases[] = {
        {"not_before = now() + interval '1 h'", true, true, true},
        {"memory_bytes = 4e9, disk_bytes = 10e9", true, true, true},
        {"memory_bytes = 4e9 + 1", false, false, false},
        {"memory_bytes = 0, disk_bytes = 10e9 + 1", false, false, false},
        {"disk_bytes = 0, target = 'never'", false, true, false},
        {"target = 'any', gpus = 2", false, false, true},
        {"gpu = 'A100'", false, false, false},
        {"gpu = 'H100', gpus = 3", false, false, false},
        {"gpus = 0", false, false, true},
        {"gpu = null, token = case position when 0 then gen_random_uuid() end, lease_until = case position "
         "when 0 then now() end, state = case position when 0 then 'running' else state end",
         true, false, false}, /* it runs: whoever else comes is not of use for it, but where it is lost */
        {"target = 'never'", false, true, false},
        {"target = case position when 0 then 'never' else 'any' end", true, true, false},
        {"target = 'any', gpus = position", true, false, true}, /* the next one needs a GPU */
        {"gpus = 0, target = 'any', state = 'cancelled', token = null, lease_until = null", false, false,
         false},
        {"state = 'ready'", true, true, true},
    };
    struct service_fixture *f = *state;
    submit(f, f->version, "name: two\ntarget: any\nsteps:\n  - optimize: {}\n  - optimize: {}\n", 0);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        const bool wanted[] = {cases[i].plain, cases[i].own, cases[i].gpus};
        static const char *const workers[] = {"'{any,cpu}', '{}', '{}'", "'{any,cpu,never}', '{never}', '{}'",
                                              "'{any,cpu}', '{}', '{H100,H100}'"};
        char sql[500];
        snprintf(sql, sizeof sql, "with u as (update mlopt.job set %s returning 1) select count(*) from u",
                 cases[i].set);
        assert_int_equal(count_rows(f, sql), 2);
        for (size_t k = 0; k < MLO_COUNT(workers); k++) {
            snprintf(sql, sizeof sql, "select mlopt.queue_holds_for(%s, 4000000000, 10000000000)::integer",
                     workers[k]);
            if ((count_rows(f, sql) == 1) != wanted[k])
                fail_msg("%s: worker %zu %s", cases[i].set, k, wanted[k] ? "goes" : "stays");
        }
    }
}

static void test_worker__exits_when_idle(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    /* what it cannot have keeps it from nothing */
    static const char recipe_huge[] =
        "name: h\ntarget: any\nneeds: {memory: 900000GB}\nsteps:\n  - optimize: {}\n";
    int64_t other = submit(f, f->version, recipe_huge, 0), run = submit(f, f->version, RECIPE_TINY, 0);
    w = (struct test_worker){
        .options = {
            .db = f->worker, .blobs = f->blobs, .work_dir = f->work, .poll_ms = 100, .exit_when_idle = true}};
    w.allow_write[0] = f->state;
    w.options.allow_write = w.allow_write;
    assert_int_equal(pthread_create(&w.thread, NULL, test_worker_main, &w), 0);
    pthread_join(w.thread, NULL);
    assert_mlo_ok(w.status, &w.err);
    assert_run(f, run, -1, "state", "succeeded");
    assert_run(f, other, -1, "state", "queued");
}

/* The text of a job's attempt, or NULL; yours. */
static char *log_of(struct service_fixture *f, int64_t run, const char *step, int attempt)
{
    json_t *log = NULL, *item;
    char *text = NULL;
    size_t i;
    assert_mlo_ok(mlo_run_log(f->pg->conn, run, 0, &log, &f->err), &f->err);
    json_array_foreach(json_object_get(log, "items"), i, item)
    {
        if (strcmp(mlo_json_str(item, "step", ""), step) == 0 && mlo_json_i64(item, "attempt", 0) == attempt)
            text = strdup(mlo_json_str(item, "text", ""));
    }
    json_decref(log);
    return text;
}

static bool log_is(struct service_fixture *f, int64_t run, const char *step, int attempt, const char *wanted)
{
    char *text = log_of(f, run, step, attempt);
    bool is = text && strcmp(text, wanted) == 0;
    free(text);
    return is;
}

static void test_worker__sends_what_steps_write(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(
        f,
        add_version(f, "talks",
                    "optimize.says=h\xc3\xa9llo \x1b[31m\xff<b>\noptimize.hold=1\nquantize.says=again\n"
                    "quantize.crashes=1\nevaluate.says=0123456789abcdef\nevaluate.lines=30000"),
        RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    /* while it runs; without what a terminal would obey, or a database refuse */
    wait_until(log_is(f, run, "optimize", 1, "h\xc3\xa9llo ?[31m?<b> 1\n"));
    assert_run(f, run, 0, "state", "running");
    release_steps(f);
    wait_run(f, run);
    stop_worker(&w);
    assert_run(f, run, -1, "state", "succeeded");
    assert_true(log_is(f, run, "quantize", 1, "about to crash\n")); /* each attempt has its own */
    assert_true(log_is(f, run, "quantize", 2, "again 1\n"));
    char *text = log_of(f, run, "evaluate", 1); /* 660,000 bytes of it: the beginning and the end are kept */
    assert_non_null(text);
    assert_true(strlen(text) > (256 << 10) && strlen(text) < (300 << 10));
    assert_true(mlo_str_starts(text, "0123456789abcdef 30000\n0123456789abcdef 29999\n"));
    assert_non_null(strstr(text, " bytes are left out here ...\n"));
    assert_non_null(strstr(text, "\n0123456789abcdef 2\n0123456789abcdef 1\n"));
    free(text);
    assert_null(log_of(f, run, "benchmark", 1)); /* it said nothing */
    /* who lost the job says no more of it */
    int64_t rows = count_rows(f, "select count(*) from mlopt.attempt_log");
    struct mlo_job stale = {.id = job_i64(f, run, 0, "id"), .token = "00000000-0000-4000-8000-000000000000"};
    struct mlo_job_log late;
    char path[] = "/tmp/mlopt-log-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && mlo_fs_write_full(fd, "too late\n", 9));
    mlo_job_log_begin(&late, f->worker, &stale);
    mlo_job_log_look(&late, fd, true);
    assert_true(late.lost);
    assert_int_equal(count_rows(f, "select count(*) from mlopt.attempt_log"), rows);
    close(fd);
    unlink(path);
    assert_clean(f);
}

/* The name of the only worker. */
static char *worker_name(struct service_fixture *f)
{
    json_t *workers = NULL;
    assert_mlo_ok(mlo_worker_list(f->pg->conn, &workers, &f->err), &f->err);
    json_t *items = json_object_get(workers, "items");
    char *name =
        json_array_size(items) == 1 ? strdup(mlo_json_str(json_array_get(items, 0), "name", "")) : NULL;
    json_decref(workers);
    return name;
}

static bool worker_is(struct service_fixture *f, const char *state)
{
    json_t *workers = NULL;
    assert_mlo_ok(mlo_worker_list(f->pg->conn, &workers, &f->err), &f->err);
    bool is =
        strcmp(mlo_json_str(json_array_get(json_object_get(workers, "items"), 0), "state", ""), state) == 0;
    json_decref(workers);
    return is;
}

static void test_worker__is_paused_and_resumed(void **state)
{
    struct service_fixture *f = *state;
    const struct mlo_actor other = {
        .name = "someone", .role = MLO_ADMIN, .project_id = f->project, .via = "api"};
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "slow", "optimize.hold=1"), RECIPE_TINY, 0);
    start_worker(f, &w, 2);
    wait_for_log(f, "start optimize", 1);
    char *name = worker_name(f);
    assert_mlo_status(mlo_worker_control(f->pg->conn, &other, name, MLO_WORKER_PAUSE, NULL, &f->err),
                      MLO_EFORBIDDEN, &f->err); /* a project's admin is not the installation's */
    assert_mlo_status(mlo_worker_control(f->pg->conn, &SYSTEM, "nobody", MLO_WORKER_PAUSE, NULL, &f->err),
                      MLO_ENOTFOUND, &f->err);
    assert_mlo_ok(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_PAUSE, "new disk", &f->err),
                  &f->err);
    wait_until(worker_is(f, "paused"));
    int64_t later = submit(f, f->version, RECIPE_DERIVE, 0);
    release_steps(f);
    wait_until(count_rows(f, "select count(*) from mlopt.job where state = 'succeeded'") ==
               1); /* what it had */
    wait_until(!jobs_in_scratch(f));
    mlo_clock_sleep_ms(1500); /* it would have claimed at once */
    assert_count(f, "select count(*) from mlopt.attempt", 1);
    assert_run(f, later, -1, "state", "queued");
    assert_mlo_ok(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_RUN, NULL, &f->err), &f->err);
    wait_run(f, run);
    wait_run(f, later);
    assert_true(worker_is(f, "active"));
    stop_worker(&w);
    assert_mlo_status(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_PAUSE, NULL, &f->err),
                      MLO_ECONFLICT, &f->err);
    assert_count(
        f,
        "select count(*) from mlopt.audit where project_id = 0 and convert_from(body, 'UTF8')::json ->> "
        "'action' in ('worker.pause', 'worker.resume')",
        2);
    assert_clean(f);
    free(name);
}

static void test_worker__drains_however_long_it_takes(void **state)
{
    struct service_fixture *f = *state;
    struct test_worker w;
    int64_t run = submit(f, add_version(f, "slow", "optimize.hold=1"), RECIPE_TINY, 0);
    start_worker(f, &w, 1);
    wait_for_log(f, "start optimize", 1);
    char *name = worker_name(f);
    assert_mlo_ok(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_DRAIN, NULL, &f->err), &f->err);
    assert_mlo_status(mlo_worker_control(f->pg->conn, &SYSTEM, name, MLO_WORKER_RUN, NULL, &f->err),
                      MLO_ECONFLICT, &f->err);
    wait_until(worker_is(f, "draining"));
    assert_run(f, run, 0, "state", "running"); /* not handed back, though this worker's drain_ms is 0 */
    release_steps(f);
    pthread_join(w.thread, NULL); /* nobody set its flag */
    assert_mlo_ok(w.status, &w.err);
    assert_true(worker_is(f, "stopped"));
    assert_run(f, run, 0, "state", "succeeded");
    assert_run(f, run, 1, "state", "queued");
    assert_clean(f);
    free(name);
}

static void test_worker__killed_in_mid_job_loses_nothing(void **state)
{
    struct service_fixture *f = *state;
    int wait_status;
    int64_t run = submit(f, add_version(f, "slow", "quantize.hold=1"), RECIPE_TINY, 0);
    pid_t worker = start_worker_process(f, LEASE_MS);
    wait_for_log(f, "start quantize", 1);
    kill(worker, SIGKILL);
    waitpid(worker, &wait_status, 0);
    wait_until(!any_child_alive(f));
    assert_true(scratch_left(f) > 0); /* what the next one removes */
    assert_run(f, run, 1, "state", "running");
    end_leases(f);
    release_steps(f);
    worker = start_worker_process(f, LEASE_MS);
    wait_run(f, run);
    assert_int_equal(scratch_left(f), 1);
    kill(worker, SIGTERM);
    waitpid(worker, &wait_status, 0);
    assert_true(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0);
    assert_run(f, run, -1, "state", "succeeded");
    assert_int_equal(micro_count(f->state, "start optimize"), 1);
    assert_int_equal(micro_count(f->state, "start quantize"), 2);
    assert_int_equal(micro_count(f->state, "end quantize"), 1);
    assert_int_equal(job_i64(f, run, 1, "attempt"), 2);
    assert_count(f, "select count(*) from mlopt.derivation", 2);
    assert_count(f, "select count(*) from mlopt.variant where name = 'tiny'", 1);
    assert_count(f, "select count(*) from mlopt.evidence", 4);
    assert_clean(f);
}

static void test_worker__stopped_past_its_lease_has_no_effect(void **state)
{
    struct service_fixture *f = *state;
    int wait_status;
    int64_t run = submit(f, add_version(f, "slow", "optimize.hold=1"), RECIPE_DERIVE, 0);
    pid_t sleeper = start_worker_process(f, LEASE_MS);
    wait_for_log(f, "start optimize", 1);
    kill(sleeper, SIGSTOP);
    end_leases(f);
    release_steps(f);
    wait_for_log(f, "end optimize", 1); /* the sleeper has a result, and does not know what happened */
    pid_t other = start_worker_process(f, LEASE_MS);
    wait_run(f, run);
    kill(sleeper, SIGCONT);
    wait_until(!jobs_in_scratch(f));
    kill(sleeper, SIGTERM);
    kill(other, SIGTERM);
    waitpid(sleeper, &wait_status, 0);
    waitpid(other, &wait_status, 0);
    assert_run(f, run, -1, "state", "succeeded");
    assert_int_equal(job_i64(f, run, 0, "attempt"), 2);
    assert_count(f, "select count(*) from mlopt.attempt where outcome = 'succeeded'", 1);
    assert_count(f, "select count(*) from mlopt.attempt where outcome = 'lost'", 1);
    assert_count(f, "select count(*) from mlopt.variant where name = 'derived'", 1);
    assert_clean(f);
}

int main(int argc, char **argv)
{
    int other = service_main(argc, argv);
    if (other >= 0)
        return other;
    const struct CMUnitTest tests[] = {
        SERVICE_TEST(test_worker__completes_a_run),
        SERVICE_TEST(test_worker__signs_how_it_made_what_it_made),
        SERVICE_TEST(test_worker__reuses_derivations_and_measures_afresh),
        SERVICE_TEST(test_worker__two_runs_share_a_derivation_in_flight),
        SERVICE_TEST(test_worker__a_crashed_child_is_tried_again),
        SERVICE_TEST(test_worker__a_bad_model_fails_once),
        SERVICE_TEST(test_worker__refuses_a_result_outside_the_scratch_folder),
        SERVICE_TEST(test_worker__signs_only_what_it_compiled),
        SERVICE_TEST(test_worker__a_report_knows_the_steps_before_it),
        SERVICE_TEST(test_worker__keeps_no_document_of_another_step_or_size),
        SERVICE_TEST(test_worker__what_a_step_chose_enters_the_derivation),
        SERVICE_TEST(test_worker__reads_signatures_once),
        SERVICE_TEST(test_worker__an_unfinished_choice_is_not_reused),
        SERVICE_TEST(test_worker__a_failed_expectation_fails_the_run),
        SERVICE_TEST(test_worker__cancellation_stops_a_running_step),
        SERVICE_TEST(test_worker__stopping_hands_the_job_back),
        SERVICE_TEST(test_worker__holds_no_transaction_while_working),
        SERVICE_TEST(test_worker__a_benchmark_has_the_machine_to_itself),
        SERVICE_TEST(test_worker__stays_for_what_it_could_have),
        SERVICE_TEST(test_worker__exits_when_idle),
        SERVICE_TEST(test_worker__sends_what_steps_write),
        SERVICE_TEST(test_worker__is_paused_and_resumed),
        SERVICE_TEST(test_worker__drains_however_long_it_takes),
        SERVICE_TEST(test_worker__killed_in_mid_job_loses_nothing),
        SERVICE_TEST(test_worker__stopped_past_its_lease_has_no_effect),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
