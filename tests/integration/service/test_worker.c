/* Workers with the micro step: the real protocol, real processes, real blobs. */
#include "base/dsse.h"
#include "registry/attest.h"
#include "tests/integration/service/service_fixture.h"

static void test_worker__completes_a_run(void **state)
{
    struct service_fixture *f = *state;
    int64_t run = submit(f, f->version, RECIPE_TINY, 0);
    work_through(f, run, "succeeded");
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
    int64_t run = submit(f, add_version(f, "crash", "quantize.crashes=1"), RECIPE_TINY, 0);
    work_through(f, run, "succeeded");
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
    int64_t run = submit(f, add_version(f, "bad", "optimize.fail=bad-format"), RECIPE_TINY, 0);
    work_through(f, run, "failed");
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
    int64_t run = submit(f, add_version(f, "worse", "evaluate.drop_percent=3"), RECIPE_TINY, 0);
    work_through(f, run, "failed");
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
    work_through(f, run, "succeeded");
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
        SERVICE_TEST(test_worker__killed_in_mid_job_loses_nothing),
        SERVICE_TEST(test_worker__stopped_past_its_lease_has_no_effect),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
