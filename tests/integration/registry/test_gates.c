/* Policies and gates: what is refused, why, with which numbers, and what is kept of it. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;
static const struct mlo_actor manager = {
    .name = "rm", .role = MLO_PROMOTER, .via = "cli", .request_id = "r-1"};

struct shop {
    int64_t project_id, model_id;
    struct mlo_digest source[4], int8[4], test, calibration;
};

static struct mlo_digest digest_of(const char *text)
{
    struct mlo_digest d;
    mlo_digest_of(text, strlen(text), &d);
    return d;
}

/* Two samples of the dataset: one named like it, one called `second`. As a worker records them. */
static void two_samples(struct pg_fixture *f, const struct mlo_digest *manifest, const char *first,
                        const char *second)
{
    struct mlo_db_conn *worker;
    struct mlo_digest a = digest_of(first), b = digest_of(second);
    uint8_t both[2 * MLO_SAMPLE_BYTES];
    bool swap = memcmp(a.bytes, b.bytes, MLO_SAMPLE_BYTES) > 0;
    memcpy(both, swap ? b.bytes : a.bytes, MLO_SAMPLE_BYTES);
    memcpy(both + MLO_SAMPLE_BYTES, swap ? a.bytes : b.bytes, MLO_SAMPLE_BYTES);
    assert_mlo_ok(mlo_db_acquire(f->worker, &worker, &f->err), &f->err);
    assert_mlo_ok(mlo_samples_record(worker, manifest, both, sizeof both, &f->err), &f->err);
    mlo_db_release(worker);
}

static void samples(struct pg_fixture *f, const struct mlo_digest *manifest, const char *name)
{
    char second[64];
    snprintf(second, sizeof second, "%s, the second", name);
    two_samples(f, manifest, name, second);
}

static struct mlo_digest raw_dataset(struct pg_fixture *f, const struct shop *s, const char *name)
{
    struct mlo_dataset_info info;
    struct mlo_manifest_blob b = {.role = "data", .name = "d.npz", .digest = digest_of(name)};
    assert_mlo_ok(mlo_blob_record(f->conn, &root, s->project_id, &b.digest, 9, &f->err), &f->err);
    assert_mlo_ok(
        mlo_dataset_version_create(f->conn, &root, s->project_id, name, "", NULL, &b, 1, &info, &f->err),
        &f->err);
    return info.manifest;
}

static struct mlo_digest dataset(struct pg_fixture *f, const struct shop *s, const char *name)
{
    struct mlo_digest manifest = raw_dataset(f, s, name);
    samples(f, &manifest, name);
    return manifest;
}

/* Two versions, each with a derived variant int8; two datasets. */
static struct shop shop(struct pg_fixture *f)
{
    struct shop s;
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "fashion", &s.project_id, &f->err), &f->err);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, s.project_id, "cnn", &s.model_id, &f->err), &f->err);
    s.test = dataset(f, &s, "test");
    s.calibration = dataset(f, &s, "calibration");
    for (int i = 1; i <= 2; i++) {
        char text[32];
        struct mlo_version_info v;
        struct mlo_digest key;
        struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx"};
        snprintf(text, sizeof text, "version %d", i);
        s.source[i] = b.digest = digest_of(text);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, s.project_id, &b.digest, 1000, &f->err), &f->err);
        assert_mlo_ok(mlo_version_create(f->conn, &root, s.model_id, "", &b, 1, &v, &f->err), &f->err);
        snprintf(text, sizeof text, "int8 %d", i);
        s.int8[i] = digest_of(text);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, s.project_id, &s.int8[i], 250, &f->err), &f->err);
        json_t *derivation = json_pack("{s:s}", "step", text);
        assert_mlo_ok(
            mlo_derivation_record(f->conn, derivation, "quantize", &s.int8[i], 250, NULL, &key, &f->err),
            &f->err);
        json_decref(derivation);
        assert_mlo_ok(mlo_lineage_add(f->conn, s.project_id, &s.int8[i], &s.source[i],
                                      MLO_LINEAGE_DERIVED_FROM, &key, 0, &f->err),
                      &f->err);
        assert_mlo_ok(mlo_lineage_add(f->conn, s.project_id, &s.int8[i], &s.calibration,
                                      MLO_LINEAGE_CALIBRATED_WITH, &key, 0, &f->err),
                      &f->err);
        assert_mlo_ok(mlo_variant_name(f->conn, &root, v.id, "int8", &s.int8[i], &key, 0, NULL, &f->err),
                      &f->err);
    }
    return s;
}

static void policy(struct pg_fixture *f, const struct shop *s, bool of_model, int64_t seen, const char *text)
{
    struct mlo_policy_scope scope = {s->project_id, of_model ? s->model_id : 0};
    assert_mlo_ok(mlo_policy_set(f->conn, &root, &scope, text, "set by the test", &seen, NULL, &f->err),
                  &f->err);
}

/* An accuracy of 0.9 with its interval, or whatever `e` says instead. */
static int64_t measure(struct pg_fixture *f, const struct shop *s, struct mlo_evidence e)
{
    int64_t id;
    e.project_id = s->project_id;
    e.unit = "1";
    e.protocol = "p1";
    e.engine = e.engine ? e.engine : "cpu 1 (oneDNN 2.6.3)";
    e.machine_class = e.machine_class ? e.machine_class : "zen3";
    assert_mlo_ok(mlo_evidence_add(f->conn, &e, &id, &f->err), &f->err);
    return id;
}

static int64_t top1(struct pg_fixture *f, const struct shop *s, const struct mlo_digest *artifact, double low,
                    double high, const struct mlo_digest *data, const char *role)
{
    return measure(f, s,
                   (struct mlo_evidence){.artifact = *artifact,
                                         .metric = "top1",
                                         .observed = {(low + high) / 2, low, high},
                                         .dataset = data,
                                         .data_role = role});
}

/* *decision may be NULL, else it is the caller's. */
static enum mlo_status promote(struct pg_fixture *f, const struct shop *s, int64_t version,
                               const char *variant, const char *stage, int64_t seen, json_t **decision)
{
    struct mlo_release_choice choice = {"any", variant};
    struct mlo_move move;
    json_t *own = NULL;
    struct mlo_promotion p = {.model_id = s->model_id,
                              .version = version,
                              .choices = &choice,
                              .choice_count = 1,
                              .stage = stage,
                              .reason = "because",
                              .if_match = &seen,
                              .decision = decision ? decision : &own};
    enum mlo_status status = mlo_stage_promote(f->conn, &manager, &p, &move, &f->err);
    json_decref(own);
    return status;
}

static const json_t *row(const json_t *decision, size_t i)
{
    return json_array_get(json_object_get(decision, "conditions"), i);
}

/* Promotes int8 of version 1 to staging; the only row's verdict must be this, and its reason hold the text.
 */
static void judged(struct pg_fixture *f, const struct shop *s, bool holds, const char *why)
{
    json_t *decision = NULL;
    enum mlo_status status = mlo_db_begin(f->conn, &f->err);
    assert_mlo_ok(status, &f->err);
    status = promote(f, s, 1, "int8", "staging", 0, &decision);
    assert_int_equal(mlo_db_end(f->conn, MLO_ECANCELLED, NULL), MLO_ECANCELLED);
    assert_int_equal(status, holds ? MLO_OK : MLO_EGATE);
    if (!strstr(mlo_json_str(row(decision, 0), "why", ""), why))
        fail_msg("'%s' does not hold '%s'", mlo_json_str(row(decision, 0), "why", ""), why);
    assert_true(mlo_json_bool(row(decision, 0), "holds", !holds) == holds);
    json_decref(decision);
}

/* --- policies ---------------------------------------------------------------------------------- */

static void test_policy__mistakes_are_named(void **state)
{
    static const struct {
        const char *text, *message, *hint;
    } cases[] = {
        {"stages:\n  prod: []\n", "p:2: unknown stage 'prod'", "staging, production"},
        {"stagse: {}\n", "p:1: unknown key 'stagse'", "did you mean 'stages'?"},
        {"stages:\n  production:\n    - evidnce: top1 >= 0.9\n", "p:3: unknown kind of gate 'evidnce'",
         "did you mean 'evidence'?"},
        {"stages:\n  production:\n    - evidence: top1 >= 0.9\n      dateset: x\n",
         "p:4: unknown key 'dateset'", "did you mean 'dataset'?"},
        {"stages:\n  production:\n    - evidence: top1 => 0.9\n", "p:3: the condition \"top1 => 0.9\"",
         "write for"},
        {"stages:\n  production:\n    - evidence: top1 >= sorce\n", "p:3: ", "did you mean 'source'?"},
        {"stages:\n  production:\n    - evidence: top1 >= 0.9\n      younger_than: 30 moons\n",
         "p:4: '30 moons' is no age", "30d, 12h"},
        {"stages:\n  production:\n    - evidence: top1 >= 0.9\n      targets: any\n",
         "p:4: 'targets' must be a list", "targets: [any"},
        {"stages:\n  production:\n    - provenance: magic\n", "p:3: unknown provenance 'magic'", "derived"},
        {"stages:\n  production: evidence\n", "p:2: 'production' must be a list", "- evidence"},
        {"stages:\n  production:\n    - top1 >= 0.9\n", "p:3: a gate is written", "- evidence"},
        {"stages:\n  production: []\n  production: []\n", "p:3: the key 'production' stands twice", ""},
        {"inherit: maybe\n", "p:1: 'inherit' is true or false", ""},
        {"{}\n", "p:1: the key 'stages' is missing", ""},
        {"stages: [&a x]\n", "p:1: anchors", ""},
    };
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_error err = {0};
        struct mlo_policy *parsed = NULL;
        enum mlo_status status = mlo_policy_parse(cases[i].text, strlen(cases[i].text), "p", &parsed, &err);
        assert_true(status != MLO_OK && !parsed);
        if (!strstr(err.message, cases[i].message) || !strstr(err.hint, cases[i].hint))
            fail_msg("case %zu: '%s' (%s)", i, err.message, err.hint);
    }
}

static void test_policy__revisions_are_compared_and_kept(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    struct mlo_policy_scope scope = {s.project_id, 0};
    int64_t zero = 0, one = 1, made;
    json_t *json;
    assert_mlo_ok(mlo_policy_get(f->conn, &scope, 0, &json, &f->err), &f->err);
    assert_int_equal(mlo_json_i64(json, "revision", -1), 0);
    json_decref(json);
    const char *first = "stages: {production: [{evidence: top1 >= 0.9}]}";
    assert_mlo_status(mlo_policy_set(f->conn, &manager, &scope, first, "", &zero, &made, &f->err),
                      MLO_EFORBIDDEN, &f->err);
    assert_mlo_status(mlo_policy_set(f->conn, &root, &scope, first, "", NULL, &made, &f->err),
                      MLO_EPRECONDITION_REQUIRED, &f->err);
    assert_mlo_ok(mlo_policy_set(f->conn, &root, &scope, first, "strict", &zero, &made, &f->err), &f->err);
    assert_int_equal(made, 1);
    assert_mlo_status(mlo_policy_set(f->conn, &root, &scope, first, "", &zero, &made, &f->err),
                      MLO_EPRECONDITION, &f->err);
    assert_mlo_status(mlo_policy_set(f->conn, &root, &scope, "stages: 7", "", &one, &made, &f->err),
                      MLO_EINVAL, &f->err);
    assert_mlo_status(mlo_policy_set(f->conn, &root, &scope, "inherit: true", "", &one, &made, &f->err),
                      MLO_EINVAL, &f->err);
    assert_mlo_ok(mlo_policy_set(f->conn, &root, &scope, "stages: {}", "looser", &one, &made, &f->err),
                  &f->err);
    assert_mlo_ok(mlo_policy_get(f->conn, &scope, 1, &json, &f->err), &f->err);
    assert_string_equal(mlo_json_str(json, "text", ""), first);
    assert_string_equal(mlo_json_str(json, "created_by", ""), "system");
    json_decref(json);
    assert_mlo_ok(mlo_policy_list(f->conn, &scope, NULL, &json, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(json, "items")), 2);
    json_decref(json);
    assert_mlo_status(mlo_policy_get(f->conn, &scope, 7, &json, &f->err), MLO_ENOTFOUND, &f->err);
    struct mlo_audit_filter filter = {.action = "policy.set"};
    assert_mlo_ok(mlo_audit_list(f->conn, s.project_id, &filter, NULL, &json, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(json, "items")), 2);
    json_decref(json);
}

static void test_history__the_server_cannot_change_it(void **state)
{
    static const char *const tries[] = {
        "UPDATE policy SET text = 'stages: {}'",    "DELETE FROM policy",        "TRUNCATE policy",
        "UPDATE gate_decision SET accepted = true", "DELETE FROM gate_decision", "TRUNCATE gate_decision"};
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    policy(f, &s, false, 0, "stages: {staging: [{evidence: top1 >= 0.9}]}");
    assert_mlo_status(promote(f, &s, 1, "int8", "staging", 0, NULL), MLO_EGATE, &f->err);
    for (size_t i = 0; i < MLO_COUNT(tries); i++) {
        enum mlo_status status = mlo_db_exec_text(f->conn, tries[i], &f->err);
        if (status != MLO_EFORBIDDEN)
            fail_msg("%s: %s", tries[i], mlo_status_info(status)->code);
    }
}

/* --- evidence ---------------------------------------------------------------------------------- */

static void test_gate__the_bound_decides(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    policy(f, &s, false, 0, "stages: {staging: [{evidence: top1 >= 0.9, dataset: test, engine: cpu}]}");
    judged(f, &s, false, "was not measured");
    top1(f, &s, &s.int8[1], 0.89, 0.93, &s.test,
         "evaluate"); /* the value is enough, the lower bound is not */
    judged(f, &s, false, "its lower bound 0.89 is not >= 0.9");
    top1(f, &s, &s.int8[1], 0.905, 0.93, &s.test, "evaluate");
    judged(f, &s, true, "its lower bound 0.905 is >= 0.9");
    /* evidence of the role select, and of another dataset, is none */
    top1(f, &s, &s.int8[1], 0.95, 0.96, &s.test, "select");
    judged(f, &s, false, "data of the role select");
    struct mlo_digest other = dataset(f, &s, "other");
    policy(f, &s, false, 1, "stages: {staging: [{evidence: top1 >= 0.9, dataset: other@2}]}");
    top1(f, &s, &s.int8[1], 0.95, 0.96, &other, "evaluate");
    judged(f, &s, false, "was not measured");
}

/* A metric of what a postprocessing model makes of the outputs is another one. */
static void test_gate__postprocessed_numbers_are_read_where_it_names_the_model(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    char digest[MLO_DIGEST_TEXT_SIZE], gate[256];
    struct mlo_digest post = digest_of("decode");
    json_t *params = json_pack("{s:s}", "postprocess", mlo_digest_text(&post, digest));
    const struct mlo_evidence after = {.artifact = s.int8[1],
                                       .metric = "top1",
                                       .params = params,
                                       .observed = {0.97, 0.96, 0.98},
                                       .dataset = &s.test,
                                       .data_role = "evaluate"};
    policy(f, &s, false, 0, "stages: {staging: [{evidence: top1 >= 0.9, dataset: test}]}");
    measure(f, &s, after);
    judged(f, &s, false, "was not measured");
    top1(f, &s, &s.int8[1], 0.85, 0.88, &s.test, "evaluate");
    measure(f, &s, after); /* newer, and not what the gate speaks of */
    judged(f, &s, false, "its lower bound 0.85 is not >= 0.9");
    snprintf(gate, sizeof gate, "stages: {staging: [{evidence: 'top1[postprocess=%.24s] >= 0.9'}]}", digest);
    policy(f, &s, false, 1, gate);
    judged(f, &s, true, "its lower bound 0.96 is >= 0.9");
    policy(f, &s, false, 2, "stages: {staging: [{evidence: 'top1[postprocess=sha256:0000] >= 0.9'}]}");
    judged(f, &s, false, "was not measured");
    json_decref(params);
}

/* What a distillation evaluation measured: a number of the student whose parameters name the teacher. */
static void test_gate__reads_what_a_student_lost(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    char digest[MLO_DIGEST_TEXT_SIZE], gate[256];
    json_t *params = json_pack("{s:s}", "teacher", mlo_digest_text(&s.source[2], digest));
    struct mlo_evidence lost = {.artifact = s.int8[1],
                                .metric = "distill.drop.top1",
                                .params = params,
                                .observed = {0.008, 0.002, 0.014},
                                .dataset = &s.test,
                                .data_role = "evaluate"};
    policy(f, &s, false, 0, "stages: {staging: [{evidence: distill.drop.top1 <= 1pt, dataset: test}]}");
    judged(f, &s, false, "was not measured");
    measure(f, &s, lost); /* the value would do, the upper bound does not */
    judged(f, &s, false, "its upper bound 0.014 is not <= 0.01");
    lost.observed = (struct mlo_interval){0.004, 0.001, 0.009};
    measure(f, &s, lost);
    judged(f, &s, true, "its upper bound 0.009 is <= 0.01");
    /* and of one teacher, where the gate names it */
    snprintf(gate, sizeof gate, "stages: {staging: [{evidence: 'distill.drop.top1[teacher=%.24s] <= 1pt'}]}",
             digest);
    policy(f, &s, false, 1, gate);
    judged(f, &s, true, "its upper bound 0.009 is <= 0.01");
    policy(f, &s, false, 2,
           "stages: {staging: [{evidence: 'distill.drop.top1[teacher=sha256:0000] <= 1pt'}]}");
    judged(f, &s, false, "was not measured");
    json_decref(params);
}

static void test_gate__old_evidence_is_refused(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    struct mlo_db_conn *owner;
    policy(f, &s, false, 0, "stages: {staging: [{evidence: top1 >= 0.9, younger_than: 30d}]}");
    top1(f, &s, &s.int8[1], 0.92, 0.93, &s.test, "evaluate");
    judged(f, &s, true, "is >= 0.9");
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    assert_mlo_ok(mlo_db_exec_text(owner, "UPDATE evidence SET at = now() - interval '31 days'", &f->err),
                  &f->err);
    judged(f, &s, false, "31.0 days old, and must be younger than 30.0");
    assert_mlo_ok(mlo_db_exec_text(owner, "UPDATE evidence SET at = now() - interval '29 days'", &f->err),
                  &f->err);
    judged(f, &s, true, "is >= 0.9");
    mlo_db_release(owner);
}

static void test_gate__data_that_made_it_cannot_judge_it(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    policy(f, &s, false, 0, "stages: {staging: [{evidence: top1 >= 0.9}]}");
    top1(f, &s, &s.int8[1], 0.92, 0.93, &s.calibration, "evaluate");
    judged(f, &s, false, "judged on calibration@1, which the variant was made with (calibrated-with)");
    /* also when an ancestor was made with it */
    struct mlo_digest grandchild = digest_of("grandchild"), data = dataset(f, &s, "selection");
    assert_mlo_ok(mlo_blob_record(f->conn, &root, s.project_id, &grandchild, 5, &f->err), &f->err);
    assert_mlo_ok(mlo_lineage_add(f->conn, s.project_id, &s.int8[1], &grandchild, MLO_LINEAGE_DERIVED_FROM,
                                  NULL, 0, &f->err),
                  &f->err);
    assert_mlo_ok(mlo_lineage_add(f->conn, s.project_id, &grandchild, &data, MLO_LINEAGE_SELECTED_WITH, NULL,
                                  0, &f->err),
                  &f->err);
    top1(f, &s, &s.int8[1], 0.92, 0.93, &data, "evaluate");
    judged(f, &s, false, "judged on selection@1, which the variant was made with (selected-with)");
    top1(f, &s, &s.int8[1], 0.92, 0.93, &s.test, "evaluate");
    judged(f, &s, true, "is >= 0.9");
}

static void test_gate__samples_are_compared_not_names(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    policy(f, &s, false, 0, "stages: {staging: [{evidence: top1 >= 0.9}]}");
    struct mlo_digest leaky = raw_dataset(f, &s, "leaky");
    top1(f, &s, &s.int8[1], 0.92, 0.93, &leaky, "evaluate");
    judged(f, &s, false, "are not known");
    two_samples(f, &leaky, "of its own", "calibration"); /* the first sample of calibration@1 */
    judged(f, &s, false, "1 samples that judged it are in calibration@1");
    struct mlo_db_conn *worker;
    uint8_t wrong[2 * MLO_SAMPLE_BYTES] = {9};
    assert_mlo_ok(mlo_db_acquire(f->worker, &worker, &f->err), &f->err);
    assert_mlo_status(mlo_samples_record(worker, &leaky, wrong, sizeof wrong, &f->err), MLO_EFORMAT, &f->err);
    assert_mlo_status(mlo_samples_record(worker, &leaky, wrong, 7, &f->err), MLO_EFORMAT, &f->err);
    assert_mlo_status(mlo_db_exec_text(worker, "DELETE FROM dataset_samples", &f->err), MLO_EFORBIDDEN,
                      &f->err);
    mlo_db_release(worker);
}

static void test_gate__paired_evidence_else_two_intervals(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    assert_mlo_ok(promote(f, &s, 2, "int8", "production", 0, NULL), &f->err);
    policy(
        f, &s, false, 0,
        "stages: {staging: [{evidence: 'latency.p99[batch=1,threads=1] <= 0.8 * production', machine_class: "
        "'zen*'}]}");
    judged(f, &s, false, "was not measured on machine class zen*");
    json_t *load = json_pack("{s:i, s:i}", "batch", 1, "threads", 1);
    struct mlo_evidence e = {
        .artifact = s.int8[1], .metric = "latency.p99", .params = load, .observed = {70, 68, 72}};
    measure(f, &s, e);
    judged(f, &s, false, "was not compared with production, nor was that measured in the same way");
    e.artifact = s.int8[2];
    e.observed = (struct mlo_interval){100, 95, 105};
    measure(f, &s, e);
    judged(f, &s, true, "its upper bound 0.757895 is <= 0.8; not measured together"); /* 72 / 95 */
    e.observed = (struct mlo_interval){100, 85, 105};
    measure(f, &s, e);
    judged(f, &s, false, "its upper bound 0.847059 is not <= 0.8; not measured together");
    e.artifact = s.int8[1];
    e.observed = (struct mlo_interval){70, 68, 72};
    e.baseline = &s.int8[2];
    e.comparison = "ratio";
    e.compared = (struct mlo_interval){0.7, 0.69, 0.71};
    measure(f, &s, e);
    judged(f, &s, true, "its upper bound 0.71 is <= 0.8; measured together");
    e.machine_class = "m1"; /* another machine's numbers are not asked for */
    e.compared = (struct mlo_interval){0.9, 0.89, 0.91};
    measure(f, &s, e);
    judged(f, &s, true, "0.71 is <= 0.8");
    json_decref(load);
}

static void test_gate__an_empty_stage_and_the_same_bytes_compare_well(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    json_t *decision = NULL;
    policy(f, &s, false, 0,
           "stages:\n  production:\n    - evidence: top1 >= production - 0.5pt\n    - evidence: size <= 0.3 "
           "* source\n"
           "    - provenance: derived\n    - evidence: top1 >= 0.99\n      targets: ['cuda:*']\n");
    assert_mlo_ok(promote(f, &s, 1, "int8", "production", 0, &decision), &f->err);
    assert_non_null(strstr(mlo_json_str(row(decision, 0), "why", ""), "nothing to compare with"));
    assert_true(fabs(mlo_json_f64(row(decision, 1), "value", 0) - 0.25) < 1e-12);
    assert_non_null(strstr(mlo_json_str(row(decision, 2), "why", ""), "recorded derivations"));
    assert_non_null(strstr(mlo_json_str(row(decision, 3), "why", ""), "no variant for the targets"));
    json_decref(decision);
    assert_mlo_status(promote(f, &s, 1, "source", "production", 1, &decision), MLO_EGATE, &f->err);
    assert_false(mlo_json_bool(row(decision, 1), "holds", true));
    json_decref(decision);
    policy(f, &s, false, 1, "stages: {production: [{evidence: top1 >= source - 0.5pt}]}");
    assert_mlo_ok(promote(f, &s, 1, "source", "production", 1, &decision), &f->err);
    assert_string_equal(mlo_json_str(row(decision, 0), "compared", ""), "exact");
    json_decref(decision);
}

/* --- decisions --------------------------------------------------------------------------------- */

static void test_decision__a_refusal_is_kept_with_its_numbers(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    json_t *decision, *list, *audit, *one;
    struct mlo_digest digest;
    char text[MLO_DIGEST_TEXT_SIZE];
    policy(f, &s, false, 0, "stages: {production: [{evidence: top1 >= source - 0.5pt}]}");
    struct mlo_evidence e = {.artifact = s.int8[1],
                             .metric = "top1",
                             .observed = {0.9, 0.89, 0.91},
                             .dataset = &s.test,
                             .data_role = "evaluate",
                             .baseline = &s.source[1],
                             .comparison = "difference",
                             .compared = {-0.004, -0.009, 0.001}};
    int64_t id = measure(f, &s, e);
    assert_mlo_status(promote(f, &s, 1, "int8", "production", 0, &decision), MLO_EGATE, &f->err);
    assert_non_null(strstr(f->err.message, "fashion/cnn:production refuse version 1"));
    assert_non_null(strstr(f->err.message, "lower bound -0.009 is not >= -0.005"));
    assert_string_equal(mlo_json_str(decision, "verdict", ""), "refused");
    assert_true(mlo_json_f64(row(decision, 0), "bound", 0) == -0.009);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(row(decision, 0), "evidence"), 0)),
                     id);
    assert_mlo_ok(mlo_decision_list(f->conn, s.model_id, "production", NULL, &list, &f->err), &f->err);
    const json_t *kept = json_array_get(json_object_get(list, "items"), 0);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 1);
    assert_string_equal(mlo_json_str(kept, "actor", ""), "rm");
    assert_true(json_equal(json_object_get(kept, "conditions"), json_object_get(decision, "conditions")));
    assert_mlo_ok(mlo_decision_get(f->conn, s.model_id, mlo_json_i64(kept, "id", 0), &one, &f->err), &f->err);
    assert_true(json_equal(one, kept));
    json_decref(one);
    /* the audit entry holds the digest of the document as it was judged */
    struct mlo_audit_filter filter = {.action = "stage.refuse"};
    assert_mlo_ok(mlo_audit_list(f->conn, s.project_id, &filter, NULL, &audit, &f->err), &f->err);
    const json_t *entry = json_array_get(json_object_get(audit, "items"), 0);
    json_object_del(decision, "id");
    json_object_del(decision, "audit_seq");
    assert_mlo_ok(mlo_json_digest(decision, &digest, &f->err), &f->err);
    assert_string_equal(mlo_json_str(json_object_get(entry, "after"), "decision", ""),
                        mlo_digest_text(&digest, text));
    json_decref(audit);
    json_decref(list);
    json_decref(decision);
    /* nothing moved; a better measurement opens the gate, and that decision is kept too */
    e.compared = (struct mlo_interval){-0.001, -0.004, 0.002};
    measure(f, &s, e);
    assert_mlo_ok(promote(f, &s, 1, "int8", "production", 0, NULL), &f->err);
    assert_mlo_ok(mlo_decision_list(f->conn, s.model_id, NULL, NULL, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 2);
    json_decref(list);
}

static void test_decision__a_models_policy_replaces_or_adds(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    json_t *decision;
    policy(f, &s, false, 0, "stages: {production: [{evidence: size <= 100}]}");
    assert_mlo_status(promote(f, &s, 1, "int8", "production", 0, NULL), MLO_EGATE, &f->err);
    policy(f, &s, true, 0, "stages: {production: [{evidence: size <= 300}]}");
    assert_mlo_ok(promote(f, &s, 1, "int8", "production", 0, NULL), &f->err);
    policy(f, &s, true, 1, "inherit: true\nstages: {production: [{evidence: size <= 300}]}");
    assert_mlo_status(promote(f, &s, 2, "int8", "production", 1, &decision), MLO_EGATE, &f->err);
    assert_int_equal(json_array_size(json_object_get(decision, "policy")), 2);
    assert_string_equal(mlo_json_str(row(decision, 0), "scope", ""), "project");
    assert_false(mlo_json_bool(row(decision, 0), "holds", true));
    assert_true(mlo_json_bool(row(decision, 1), "holds", false));
    json_decref(decision);
}

enum { PROMOTERS = 100 };

struct promoter {
    struct pg_fixture *f;
    const struct shop *s;
    int64_t version;
    enum mlo_status status;
};

static void *promote_at_once(void *arg)
{
    struct promoter *w = arg;
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    struct mlo_release_choice int8 = {NULL, "int8"};
    int64_t zero = 0;
    struct mlo_promotion p = {.model_id = w->s->model_id,
                              .version = w->version,
                              .choices = &int8,
                              .choice_count = 1,
                              .stage = "production",
                              .if_match = &zero};
    struct mlo_move move;
    w->status = mlo_db_acquire(w->f->server, &conn, &err);
    if (w->status == MLO_OK) {
        w->status = mlo_stage_promote(conn, &manager, &p, &move, &err);
        mlo_db_release(conn);
    }
    return NULL;
}

static void test_decision__of_a_hundred_promoters_one_wins(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    pthread_t threads[PROMOTERS];
    struct promoter w[PROMOTERS];
    int won = 0, stale = 0;
    json_t *list;
    policy(f, &s, false, 0, "stages: {production: [{evidence: top1 >= 0.9}]}");
    for (int i = 1; i <= 2; i++)
        top1(f, &s, &s.int8[i], 0.92, 0.93, &s.test, "evaluate");
    for (int i = 0; i < PROMOTERS; i++) {
        w[i] = (struct promoter){.f = f, .s = &s, .version = i % 2 + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, promote_at_once, &w[i]), 0);
    }
    for (int i = 0; i < PROMOTERS; i++) {
        pthread_join(threads[i], NULL);
        won += w[i].status == MLO_OK;
        stale += w[i].status == MLO_EPRECONDITION;
    }
    assert_int_equal(won, 1);
    assert_int_equal(stale, PROMOTERS - 1);
    assert_mlo_ok(mlo_decision_list(f->conn, s.model_id, NULL, NULL, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 1);
    json_decref(list);
    struct mlo_audit_result audit;
    assert_mlo_ok(mlo_audit_verify(f->conn, s.project_id, NULL, &audit, &f->err), &f->err);
    assert_true(audit.intact);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy__mistakes_are_named),
        TEST(test_policy__revisions_are_compared_and_kept),
        TEST(test_history__the_server_cannot_change_it),
        TEST(test_gate__the_bound_decides),
        TEST(test_gate__postprocessed_numbers_are_read_where_it_names_the_model),
        TEST(test_gate__reads_what_a_student_lost),
        TEST(test_gate__old_evidence_is_refused),
        TEST(test_gate__data_that_made_it_cannot_judge_it),
        TEST(test_gate__samples_are_compared_not_names),
        TEST(test_gate__paired_evidence_else_two_intervals),
        TEST(test_gate__an_empty_stage_and_the_same_bytes_compare_well),
        TEST(test_decision__a_refusal_is_kept_with_its_numbers),
        TEST(test_decision__a_models_policy_replaces_or_adds),
        TEST(test_decision__of_a_hundred_promoters_one_wins),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
