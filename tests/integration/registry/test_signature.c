/* Signatures: what was declared, what a worker read, and what a gate makes of both; and gates on what a
 * version says of itself. */
#include <string.h>

#include "base/signature.h"
#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

struct place {
    struct pg_fixture *f;
    int64_t project, model;
};

#define SIGNATURE(in, out)                                                                                   \
    "{\"inputs\":[{\"name\":\"x\",\"type\":\"float32\",\"shape\":" in "}],"                                  \
    "\"outputs\":[{\"name\":\"y\",\"type\":\"float32\",\"shape\":" out "}]}"

static json_t *doc(const char *text)
{
    json_t *out = json_loads(text, 0, NULL);
    assert_non_null(out);
    return out;
}

static struct place setup(struct pg_fixture *f)
{
    struct place at = {.f = f};
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "shop", &at.project, &f->err), &f->err);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, at.project, "net", &at.model, &f->err), &f->err);
    return at;
}

static struct mlo_digest blob(struct place *at, const char *text)
{
    struct mlo_digest out;
    mlo_digest_of(text, strlen(text), &out);
    assert_mlo_ok(mlo_blob_record(at->f->conn, &root, at->project, &out, strlen(text), &at->f->err),
                  &at->f->err);
    return out;
}

/* A version of this model, with a label file where `labels` is one, and what its uploader says. */
static struct mlo_version_info push(struct place *at, const char *model, const char *labels,
                                    const char *declared, const char *facts)
{
    struct mlo_manifest_blob blobs[2] = {{.role = "model", .name = "m.onnx", .digest = blob(at, model)}};
    struct mlo_version_info out;
    json_t *signature = declared ? doc(declared) : NULL, *said = facts ? doc(facts) : NULL;
    if (labels)
        blobs[1] =
            (struct mlo_manifest_blob){.role = "labels", .name = "labels.txt", .digest = blob(at, labels)};
    const struct mlo_version_content content = {
        .facts = said, .signature = signature, .blobs = blobs, .count = labels ? 2 : 1};
    assert_mlo_ok(mlo_version_add(at->f->conn, &root, at->model, &content, &out, &at->f->err), &at->f->err);
    json_decref(signature);
    json_decref(said);
    return out;
}

/* As the completion of a job does. */
static void reads(struct place *at, const char *bytes, const char *document)
{
    struct mlo_db_conn *worker;
    json_t *value = doc(document);
    struct mlo_signature_reading reading = {
        .blob = blob(at, bytes), .document = value, .worker = "w", .job_id = 1};
    bool known = true, added = false;
    assert_mlo_ok(mlo_db_acquire(at->f->worker, &worker, &at->f->err), &at->f->err);
    assert_mlo_ok(mlo_signature_known(worker, &reading.blob, &known, &at->f->err), &at->f->err);
    assert_mlo_ok(mlo_signature_record(worker, &reading, &added, &at->f->err), &at->f->err);
    assert_true(added);
    assert_mlo_ok(mlo_signature_record(worker, &reading, &added, &at->f->err), &at->f->err);
    assert_false(added);
    assert_mlo_ok(mlo_signature_known(worker, &reading.blob, &known, &at->f->err), &at->f->err);
    assert_true(known);
    mlo_db_release(worker);
    json_decref(value);
}

static void policy(struct place *at, int64_t seen, const char *text)
{
    struct mlo_policy_scope scope = {at->project, 0};
    assert_mlo_ok(mlo_policy_set(at->f->conn, &root, &scope, text, "test", &seen, NULL, &at->f->err),
                  &at->f->err);
}

static enum mlo_status promote(struct place *at, int64_t version, const char *target, int64_t seen,
                               json_t **decision)
{
    struct mlo_release_choice choice = {target, "source"};
    struct mlo_move move;
    const struct mlo_promotion p = {.model_id = at->model,
                                    .version = version,
                                    .choices = &choice,
                                    .choice_count = 1,
                                    .stage = "production",
                                    .reason = "test",
                                    .if_match = &seen,
                                    .decision = decision};
    memset(&at->f->err, 0, sizeof at->f->err);
    return mlo_stage_promote(at->f->conn, &root, &p, &move, &at->f->err);
}

/* Refused, with a condition whose reason says this. */
static void refused(struct place *at, int64_t version, const char *target, int64_t seen, const char *why)
{
    json_t *decision = NULL, *row;
    size_t i;
    bool found = false;
    enum mlo_status status = promote(at, version, target, seen, &decision);
    if (status != MLO_EGATE)
        fail_msg("%s: status %d %s", why, status, at->f->err.message);
    json_array_foreach(json_object_get(decision, "conditions"), i, row) found =
        found || (!mlo_json_bool(row, "holds", true) && strstr(mlo_json_str(row, "why", ""), why));
    if (!found) {
        char *text = json_dumps(decision, JSON_INDENT(1));
        fail_msg("no '%s' in %s", why, text);
    }
    json_decref(decision);
}

static void test_compatible__compares_what_workers_read(void **state)
{
    struct place at = setup(*state);
    json_t *decision = NULL;
    policy(&at, 0, "stages:\n  production:\n    - compatible: production\n");
    push(&at, "one", NULL, SIGNATURE("[1,3]", "[1,10]"), NULL);
    /* nothing is there: there is nobody to be compatible with */
    assert_mlo_ok(promote(&at, 1, "any", 0, NULL), &at.f->err);
    push(&at, "two", NULL, SIGNATURE("[1,3]", "[1,10]"), NULL);
    refused(&at, 2, "any", 1, "no worker has read source of version 2");
    reads(&at, "two", SIGNATURE("[\"N\",3]", "[\"N\",10]"));
    /* its uploader said something else */
    refused(&at, 2, "any", 1, "what was declared at the push is not what a worker read: input 'x'");
    push(&at, "three", NULL, NULL, NULL);
    reads(&at, "three", SIGNATURE("[\"N\",3]", "[\"N\",10]"));
    refused(&at, 3, "any", 1, "no worker has read source of version 1, which is there");
    reads(&at, "one", SIGNATURE("[1,3]", "[1,10]"));
    push(&at, "four", NULL, NULL, NULL);
    reads(&at, "four", SIGNATURE("[1,3]", "[1,12]"));
    refused(&at, 4, "any", 1, "output 'y' has 12 at dimension 1, and had 10, with source of version 1");
    /* who is served now must be served then: by the consumer's target, not the release's */
    refused(&at, 3, "cuda:sm90", 1, "it would get nothing any more");
    assert_mlo_ok(promote(&at, 3, "any", 1, &decision), &at.f->err);
    const json_t *row = json_array_get(json_object_get(decision, "conditions"), 0),
                 *facts = json_object_get(row, "facts");
    assert_string_equal(mlo_json_str(row, "why", ""), "takes and gives what source of version 1 does");
    assert_int_equal(mlo_json_i64(facts, "version", 0), 1);
    assert_int_equal(mlo_json_i64(facts, "release", 0), 1);
    json_decref(decision);
    /* and back to the fixed batch: too little now */
    refused(&at, 1, "any", 2, "input 'x' takes 1 at dimension 0, and took N");
}

static void test_compatible__labels_belong_to_it(void **state)
{
    struct place at = setup(*state);
    policy(&at, 0, "stages:\n  production:\n    - compatible: production\n");
    push(&at, "one", "cat\ndog", NULL, NULL);
    reads(&at, "one", SIGNATURE("[1]", "[2]"));
    assert_mlo_ok(promote(&at, 1, "any", 0, NULL), &at.f->err);
    push(&at, "two", "dog\ncat", NULL, NULL);
    reads(&at, "two", SIGNATURE("[1]", "[2]"));
    refused(&at, 2, "any", 1, "no worker has read source of version 2"); /* nor its labels */
    reads(&at, "dog\ncat", "{\"labels\":{\"count\":2,\"digest\":\"b\",\"names\":[\"dog\",\"cat\"]}}");
    refused(&at, 2, "any", 1, "no worker has read source of version 1");
    reads(&at, "cat\ndog", "{\"labels\":{\"count\":2,\"digest\":\"a\",\"names\":[\"cat\",\"dog\"]}}");
    refused(&at, 2, "any", 1, "label 0 is 'dog', and was 'cat'");
    push(&at, "two", NULL, NULL, NULL);
    refused(&at, 3, "any", 1, "its label set is gone: there were 2 labels");
    push(&at, "two", "cat\ndog", NULL, NULL);
    assert_mlo_ok(promote(&at, 4, "any", 1, NULL), &at.f->err);
}

static int64_t refutations(struct place *at)
{
    const struct mlo_audit_filter filter = {.action = "signature.refute"};
    json_t *list = NULL;
    assert_mlo_ok(mlo_audit_list(at->f->conn, at->project, &filter, NULL, &list, &at->f->err), &at->f->err);
    int64_t count = (int64_t)json_array_size(json_object_get(list, "items"));
    if (count)
        assert_non_null(strstr(mlo_json_str(json_array_get(json_object_get(list, "items"), 0), "reason", ""),
                               "input 'x'"));
    json_decref(list);
    return count;
}

/* A lie does not wait to be looked for: it is in the audit log as soon as a worker reads the bytes, or at
 * once where one has. */
static void test_signature__what_is_not_so_is_in_the_log(void **state)
{
    struct place at = setup(*state);
    json_t *found = NULL;
    const char *const lie =
        "{\"inputs\":[{\"name\":\"x\",\"type\":\"float32\",\"shape\":[9,9]}],\"outputs\":[{"
        "\"name\":\"y\",\"type\":\"float32\",\"shape\":[1]}],\"labels\":null}";
    struct mlo_version_info first = push(&at, "one", NULL, lie, NULL);
    assert_mlo_ok(mlo_signature_refute(at.f->conn, &root, first.id, &at.f->err), &at.f->err);
    assert_int_equal(refutations(&at), 0); /* nobody knows better */
    reads(&at, "one", SIGNATURE("[1]", "[1]"));
    assert_mlo_ok(mlo_signature_refute(at.f->conn, &root, first.id, &at.f->err), &at.f->err);
    assert_int_equal(refutations(&at), 1);
    assert_mlo_ok(mlo_signature_get(at.f->conn, first.id, &first.artifact, &found, &at.f->err), &at.f->err);
    assert_non_null(strstr(mlo_json_str(found, "difference", ""), "has 1 dimensions, and had 2"));
    assert_true(json_is_object(json_object_get(found, "declared")));
    json_decref(found);
    push(&at, "other", NULL, NULL, NULL);
    push(&at, "one", NULL, lie, NULL); /* a worker has read these bytes */
    assert_int_equal(refutations(&at), 2);
    /* what is no signature is not taken */
    struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx", .digest = blob(&at, "one")};
    struct mlo_version_info none;
    json_t *wrong = doc("{\"inputs\":7}");
    const struct mlo_version_content content = {.signature = wrong, .blobs = &b, .count = 1};
    assert_int_equal(mlo_version_add(at.f->conn, &root, at.model, &content, &none, &at.f->err), MLO_EINVAL);
    json_decref(wrong);
}

/* A job of the project, for its number. */
static int64_t job_of(struct place *at, int64_t project, int64_t version)
{
    char sql[700];
    snprintf(sql, sizeof sql,
             "WITH r AS (INSERT INTO mlopt.run (project, version, recipe_name, recipe, target, source, "
             "datasets, created_by) SELECT %lld, version_id, 'r', 'r', 'any', digest, '{}', 'x' "
             "FROM mlopt.version_blob WHERE version_id = %lld AND role = 'model' RETURNING id) "
             "INSERT INTO mlopt.job (run, project, position, name, step, kind, target, state, spec) "
             "SELECT id, %lld, 0, 'j', 'optimize', 'derive', 'any', 'ready', '{}' FROM r RETURNING id",
             (long long)project, (long long)version, (long long)project);
    return pg_fixture_number(at->f->owner, sql);
}

static void record(struct place *at, const struct mlo_digest *bytes, json_t *document, int64_t job,
                   bool *added)
{
    struct mlo_db_conn *worker;
    const struct mlo_signature_reading reading = {
        .blob = *bytes, .document = document, .worker = "host of their own", .job_id = job};
    assert_mlo_ok(mlo_db_acquire(at->f->worker, &worker, &at->f->err), &at->f->err);
    assert_mlo_ok(mlo_signature_record(worker, &reading, added, &at->f->err), &at->f->err);
    mlo_db_release(worker);
}

/* The same bytes in two projects: who read them for the one, and when, is not the other's to know. */
static void test_signature__says_nothing_of_other_projects(void **state)
{
    struct place at = setup(*state), other = at;
    struct mlo_version_info theirs, ours;
    json_t *document = doc(SIGNATURE("[1,3]", "[1,10]")), *seen = NULL;
    bool added;
    assert_mlo_ok(mlo_project_ensure(at.f->conn, &root, "other", &other.project, &at.f->err), &at.f->err);
    assert_mlo_ok(mlo_model_ensure(at.f->conn, &root, other.project, "net", &other.model, &at.f->err),
                  &at.f->err);
    theirs = push(&other, "same bytes", NULL, NULL, NULL);
    ours = push(&at, "same bytes", NULL, NULL, NULL);
    record(&other, &theirs.artifact, document, job_of(&other, other.project, theirs.id), &added);
    assert_true(added);
    assert_mlo_ok(mlo_signature_get(at.f->conn, theirs.id, &theirs.artifact, &seen, &at.f->err), &at.f->err);
    assert_string_equal(mlo_json_str(seen, "worker", "?"), "host of their own");
    assert_true(json_is_string(json_object_get(seen, "read_at")));
    json_decref(seen);
    assert_mlo_ok(mlo_signature_get(at.f->conn, ours.id, &ours.artifact, &seen, &at.f->err), &at.f->err);
    assert_true(
        json_is_object(json_object_get(seen, "read"))); /* it follows from the bytes, which are ours too */
    assert_true(json_is_null(json_object_get(seen, "worker")));
    assert_true(json_is_null(json_object_get(seen, "read_at")));
    json_decref(seen);
    json_decref(document);
}

/* Kept as that, once: the next job does not read it again, and a gate says why it compares nothing. */
static void test_signature__too_large_is_known_too(void **state)
{
    struct place at = setup(*state);
    json_t *names = json_array(), *document, *seen = NULL;
    bool added, known = false;
    char name[64];
    for (int i = 0; i < 80000; i++) {
        snprintf(name, sizeof name, "an input with quite a long name that is number %d", i);
        json_array_append_new(names, json_pack("{s:s, s:s}", "name", name, "type", "float32"));
    }
    document = json_pack("{s:o, s:[]}", "inputs", names, "outputs");
    policy(&at, 0, "stages:\n  production:\n    - compatible: production\n");
    push(&at, "one", NULL, NULL, NULL);
    assert_mlo_ok(promote(&at, 1, "any", 0, NULL), &at.f->err);
    struct mlo_version_info large = push(&at, "large", NULL, NULL, NULL);
    record(&at, &large.artifact, document, 1, &added);
    assert_true(added);
    assert_mlo_ok(mlo_signature_known(at.f->conn, &large.artifact, &known, &at.f->err), &at.f->err);
    assert_true(known);
    record(&at, &large.artifact, document, 2, &added);
    assert_false(added);
    assert_mlo_ok(mlo_signature_get(at.f->conn, large.id, &large.artifact, &seen, &at.f->err), &at.f->err);
    assert_true(json_is_null(json_object_get(seen, "read")));
    assert_true(mlo_json_bool(seen, "too_large", false));
    refused(&at, 2, "any", 1, "too large");
    json_decref(seen);
    json_decref(document);
}

static void test_provenance__commit_and_dataset(void **state)
{
    struct place at = setup(*state);
    struct mlo_manifest_blob data = {.role = "data", .name = "d.npz", .digest = blob(&at, "data")};
    struct mlo_dataset_info info;
    json_t *decision = NULL;
#define COMMIT "0123456789abcdef0123456789abcdef01234567"
    assert_mlo_ok(mlo_dataset_version_create(at.f->conn, &root, at.project, "train", "", NULL, &data, 1,
                                             &info, &at.f->err),
                  &at.f->err);
    policy(&at, 0, "stages:\n  production:\n    - provenance: commit\n    - provenance: dataset\n");
    push(&at, "one", NULL, NULL, NULL);
    refused(&at, 1, "any", 0, "names no commit");
    refused(&at, 1, "any", 0, "names no dataset");
    push(&at, "two", NULL, NULL,
         "{\"code\":{\"commit\":\"" COMMIT "\",\"dirty\":true},\"datasets\":[\"train\"]}");
    refused(&at, 2, "any", 0, "trained by commit " COMMIT ", with changes that are not in it");
    push(&at, "three", NULL, NULL,
         "{\"code\":{\"commit\":\"" COMMIT "\",\"dirty\":false},\"datasets\":[\"train\"]}");
    assert_mlo_ok(promote(&at, 3, "any", 0, &decision), &at.f->err);
    const json_t *rows = json_object_get(decision, "conditions"), *row = json_array_get(rows, 0);
    assert_int_equal(json_array_size(rows), 2); /* of the version, not of each variant */
    assert_true(json_is_null(json_object_get(row, "target")));
    assert_string_equal(mlo_json_str(json_object_get(row, "facts"), "commit", ""), COMMIT);
    assert_non_null(strstr(mlo_json_str(json_array_get(rows, 1), "why", ""), "trained on train@1, sha256:"));
    json_decref(decision);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_compatible__compares_what_workers_read),
        TEST(test_compatible__labels_belong_to_it),
        TEST(test_signature__what_is_not_so_is_in_the_log),
        TEST(test_signature__says_nothing_of_other_projects),
        TEST(test_signature__too_large_is_known_too),
        TEST(test_provenance__commit_and_dataset),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
