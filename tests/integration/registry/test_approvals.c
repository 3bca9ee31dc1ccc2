/* Approvals, quarantine, the right to roll back, and members who were seen otherwise. */
#include <pthread.h>
#include <string.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;
static const struct mlo_actor manager = {.name = "rm", .role = MLO_PROMOTER, .via = "cli"};
static const struct mlo_actor anna = {.token_id = 7, .name = "anna", .role = MLO_APPROVER, .via = "api"};
static const struct mlo_actor bela = {.token_id = 8, .name = "bela", .role = MLO_APPROVER, .via = "web"};
static const struct mlo_actor author = {.token_id = 9, .name = "author", .role = MLO_ADMIN, .via = "api"};

struct shop {
    int64_t project_id, model_id;
    struct mlo_digest source[3];
};

static struct mlo_digest digest_of(const char *text)
{
    struct mlo_digest d;
    mlo_digest_of(text, strlen(text), &d);
    return d;
}

/* A model with two versions by "author". */
static struct shop shop(struct pg_fixture *f)
{
    struct shop s;
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "fashion", &s.project_id, &f->err), &f->err);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, s.project_id, "cnn", &s.model_id, &f->err), &f->err);
    for (int i = 1; i <= 2; i++) {
        char text[32];
        struct mlo_version_info v;
        struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx"};
        snprintf(text, sizeof text, "version %d", i);
        s.source[i] = b.digest = digest_of(text);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, s.project_id, &b.digest, 1000, &f->err), &f->err);
        assert_mlo_ok(mlo_version_create(f->conn, &author, s.model_id, "", &b, 1, &v, &f->err), &f->err);
    }
    return s;
}

static void policy(struct pg_fixture *f, const struct shop *s, int64_t seen, const char *text)
{
    struct mlo_policy_scope scope = {s->project_id, 0};
    assert_mlo_ok(mlo_policy_set(f->conn, &root, &scope, text, "", &seen, NULL, &f->err), &f->err);
}

static void measure(struct pg_fixture *f, const struct shop *s, const char *metric)
{
    struct mlo_evidence e = {.project_id = s->project_id,
                             .artifact = s->source[1],
                             .metric = metric,
                             .unit = "1",
                             .observed = {0.9, 0.89, 0.91},
                             .protocol = "p1",
                             .engine = "cpu",
                             .machine_class = "zen3"};
    assert_mlo_ok(mlo_evidence_add(f->conn, &e, NULL, &f->err), &f->err);
}

static const struct mlo_release_choice source = {"any", "source"};

static enum mlo_status promote(struct pg_fixture *f, const struct shop *s, int64_t version, const char *stage,
                               int64_t seen, json_t **decision)
{
    struct mlo_move move;
    struct mlo_promotion p = {.model_id = s->model_id,
                              .version = version,
                              .choices = &source,
                              .choice_count = 1,
                              .stage = stage,
                              .reason = "because",
                              .if_match = &seen,
                              .decision = decision};
    return mlo_stage_promote(f->conn, &manager, &p, &move, &f->err);
}

/* What a dry run shows. */
static struct mlo_digest shown(struct pg_fixture *f, const struct shop *s, int64_t version, const char *stage,
                               int64_t seen)
{
    struct mlo_digest digest;
    json_t *decision = NULL;
    assert_mlo_ok(mlo_db_begin(f->conn, &f->err), &f->err);
    (void)!promote(f, s, version, stage, seen, &decision);
    assert_int_equal(mlo_db_end(f->conn, MLO_ECANCELLED, NULL), MLO_ECANCELLED);
    assert_true(mlo_digest_parse(mlo_json_str(decision, "shown", ""), &digest));
    json_decref(decision);
    return digest;
}

static enum mlo_status approve(struct pg_fixture *f, const struct shop *s, const struct mlo_actor *who,
                               const struct mlo_digest *what, int64_t *id)
{
    int64_t made;
    struct mlo_approval a = {.model_id = s->model_id,
                             .version = 1,
                             .choices = &source,
                             .choice_count = 1,
                             .stage = "production",
                             .shown = *what,
                             .note = "looked at it"};
    return mlo_approval_give(f->conn, who, &a, id ? id : &made, NULL, &f->err);
}

static void refused_with(struct pg_fixture *f, const struct shop *s, int64_t seen, const char *why)
{
    assert_mlo_status(promote(f, s, 1, "production", seen, NULL), MLO_EGATE, &f->err);
    if (!strstr(f->err.message, why))
        fail_msg("'%s' does not hold '%s'", f->err.message, why);
}

static void test_approval__two_that_are_not_the_author(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    json_t *list;
    policy(f, &s, 0, "stages: {production: [{approvals: 2, role: approver}]}");
    refused_with(f, &s, 0, "0 of 2 given");
    struct mlo_digest what = shown(f, &s, 1, "production", 0);
    struct mlo_actor submitter = {.name = "ci", .role = MLO_SUBMITTER};
    assert_mlo_status(approve(f, &s, &submitter, &what, NULL), MLO_EFORBIDDEN, &f->err);
    assert_mlo_ok(approve(f, &s, &author, &what, NULL), &f->err);
    assert_mlo_ok(approve(f, &s, &manager, &what, NULL), &f->err);
    refused_with(f, &s, 0, "0 of 2 given; the author's own does not count; 1 by a lesser role");
    assert_mlo_ok(approve(f, &s, &anna, &what, NULL), &f->err);
    assert_mlo_status(approve(f, &s, &anna, &what, NULL), MLO_EEXISTS, &f->err);
    refused_with(f, &s, 0, "1 of 2 given: anna");
    int64_t id;
    assert_mlo_ok(approve(f, &s, &bela, &what, &id), &f->err);
    /* withdrawn, it does not count; another's is the admin's to withdraw */
    assert_mlo_status(mlo_approval_withdraw(f->conn, &anna, s.model_id, id, "no", &f->err), MLO_EFORBIDDEN,
                      &f->err);
    assert_mlo_status(mlo_approval_withdraw(f->conn, &bela, s.model_id, id, " ", &f->err), MLO_EINVAL,
                      &f->err);
    assert_mlo_ok(mlo_approval_withdraw(f->conn, &bela, s.model_id, id, "saw a bug", &f->err), &f->err);
    assert_mlo_status(mlo_approval_withdraw(f->conn, &bela, s.model_id, id, "again", &f->err), MLO_ECONFLICT,
                      &f->err);
    refused_with(f, &s, 0, "1 of 2 given: anna");
    assert_mlo_ok(approve(f, &s, &bela, &what, NULL), &f->err);
    assert_mlo_ok(promote(f, &s, 1, "production", 0, NULL), &f->err);
    assert_mlo_ok(mlo_approval_list(f->conn, s.model_id, "production", NULL, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 5);
    json_decref(list);
    struct mlo_audit_filter filter = {.action = "approval."};
    assert_mlo_ok(mlo_audit_list(f->conn, s.project_id, &filter, NULL, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 6);
    json_decref(list);
}

static void test_approval__what_changes_voids_it(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    policy(f, &s, 0, "stages: {production: [{approvals: 1}]}");
    struct mlo_digest what = shown(f, &s, 1, "production", 0);
    assert_mlo_ok(approve(f, &s, &anna, &what, NULL), &f->err);
    measure(f, &s, "top1"); /* new evidence */
    refused_with(f, &s, 0, "0 of 1 given; 1 void: evidence, policy or stage changed since");
    assert_mlo_status(approve(f, &s, &bela, &what, NULL), MLO_EPRECONDITION, &f->err);
    what = shown(f, &s, 1, "production", 0);
    assert_mlo_ok(approve(f, &s, &anna, &what, NULL), &f->err);
    policy(f, &s, 1, "stages: {production: [{approvals: 1, role: approver}]}"); /* a changed policy */
    refused_with(f, &s, 0, "0 of 1 given; 2 void");
    what = shown(f, &s, 1, "production", 0);
    assert_mlo_ok(approve(f, &s, &anna, &what, NULL), &f->err);
    policy(f, &s, 2, "stages: {}"); /* let the other version pass */
    assert_mlo_ok(promote(f, &s, 2, "production", 0, NULL), &f->err);
    policy(f, &s, 3, "stages: {production: [{approvals: 1, role: approver}]}");
    refused_with(f, &s, 1, "0 of 1 given"); /* the stage has moved: its generation is another */
    struct mlo_digest other = shown(f, &s, 2, "staging", 0);
    assert_mlo_status(approve(f, &s, &anna, &other, NULL), MLO_EPRECONDITION, &f->err);
}

static enum mlo_status rollback(struct pg_fixture *f, const struct shop *s, const struct mlo_actor *who,
                                int64_t seen)
{
    struct mlo_move move;
    struct mlo_rollback r = {
        .model_id = s->model_id, .stage = "production", .reason = "it was slow", .if_match = &seen};
    return mlo_stage_rollback(f->conn, who, &r, &move, &f->err);
}

static void test_quarantine__what_was_rolled_back_stays_out(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    json_t *list, *decision;
    assert_mlo_ok(promote(f, &s, 1, "production", 0, NULL), &f->err);
    assert_mlo_ok(promote(f, &s, 2, "production", 1, NULL), &f->err);
    assert_mlo_ok(rollback(f, &s, &manager, 2), &f->err);
    assert_mlo_status(promote(f, &s, 2, "production", 3, &decision), MLO_EGATE, &f->err);
    assert_non_null(strstr(f->err.message, "release 2 was rolled back from production by rm at 20"));
    assert_non_null(strstr(f->err.message, "it was slow"));
    json_decref(decision);
    assert_mlo_status(promote(f, &s, 2, "staging", 0, NULL), MLO_EGATE, &f->err);
    /* the same bytes by another name are the same */
    struct mlo_version_info v;
    assert_mlo_ok(mlo_version_find(f->conn, s.model_id, 2, &v, &f->err), &f->err);
    assert_mlo_ok(mlo_variant_name(f->conn, &root, v.id, "copy", &s.source[2], NULL, 0, NULL, &f->err),
                  &f->err);
    struct mlo_release_choice copy = {"any", "copy"};
    int64_t three = 3;
    struct mlo_move move;
    struct mlo_promotion p = {.model_id = s.model_id,
                              .version = 2,
                              .choices = &copy,
                              .choice_count = 1,
                              .stage = "production",
                              .reason = "again",
                              .if_match = &three};
    assert_mlo_status(mlo_stage_promote(f->conn, &manager, &p, &move, &f->err), MLO_EGATE, &f->err);
    assert_mlo_ok(mlo_quarantine_list(f->conn, s.model_id, false, NULL, &list, &f->err), &f->err);
    const json_t *item = json_array_get(json_object_get(list, "items"), 0);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 1);
    assert_int_equal(mlo_json_i64(json_object_get(item, "release"), "release", 0), 2);
    assert_string_equal(mlo_json_str(item, "actor", ""), "rm");
    json_decref(list);
    assert_mlo_status(mlo_quarantine_release(f->conn, &manager, s.model_id, 2, "fixed", &f->err),
                      MLO_EFORBIDDEN, &f->err);
    assert_mlo_status(mlo_quarantine_release(f->conn, &anna, s.model_id, 2, "", &f->err), MLO_EINVAL,
                      &f->err);
    assert_mlo_status(mlo_quarantine_release(f->conn, &anna, s.model_id, 1, "x", &f->err), MLO_ENOTFOUND,
                      &f->err);
    assert_mlo_ok(mlo_quarantine_release(f->conn, &anna, s.model_id, 2, "the driver was at fault", &f->err),
                  &f->err);
    assert_mlo_ok(promote(f, &s, 2, "production", 3, NULL), &f->err);
    assert_mlo_ok(mlo_quarantine_list(f->conn, s.model_id, true, NULL, &list, &f->err), &f->err);
    item = json_array_get(json_object_get(list, "items"), 0);
    assert_string_equal(mlo_json_str(json_object_get(item, "ended"), "actor", ""), "anna");
    json_decref(list);
    /* rolled back once more, it is in again */
    assert_mlo_ok(rollback(f, &s, &manager, 4), &f->err);
    assert_mlo_status(promote(f, &s, 2, "production", 5, NULL), MLO_EGATE, &f->err);
    struct mlo_audit_filter filter = {.action = "quarantine.release"};
    assert_mlo_ok(mlo_audit_list(f->conn, s.project_id, &filter, NULL, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 1);
    json_decref(list);
}

static void test_rollback__is_a_right_of_its_own(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    char text[MLO_TOKEN_TEXT_SIZE];
    struct mlo_principal who;
    assert_mlo_ok(promote(f, &s, 1, "production", 0, NULL), &f->err);
    assert_mlo_ok(promote(f, &s, 2, "production", 1, NULL), &f->err);
    struct mlo_token_request on_call = {.name = "on-call", .role = MLO_VIEWER, .rollback = MLO_RIGHT_GRANTED};
    assert_mlo_ok(mlo_token_make(f->conn, &root, &on_call, text, NULL, &f->err), &f->err);
    assert_mlo_ok(mlo_token_check(f->conn, text, &who, &f->err), &f->err);
    assert_true(who.role == MLO_VIEWER && who.rollback == MLO_RIGHT_GRANTED);
    struct mlo_actor viewer = {.name = "v", .role = MLO_VIEWER}, pipeline = manager,
                     granted = {.name = who.name, .role = who.role, .rollback = who.rollback},
                     elsewhere = granted;
    pipeline.rollback = MLO_RIGHT_WITHHELD;
    elsewhere.project_id = s.project_id + 1;
    assert_mlo_status(rollback(f, &s, &viewer, 2), MLO_EFORBIDDEN, &f->err);
    assert_mlo_status(rollback(f, &s, &pipeline, 2), MLO_EFORBIDDEN, &f->err);
    assert_mlo_status(rollback(f, &s, &elsewhere, 2), MLO_EFORBIDDEN, &f->err);
    assert_mlo_ok(rollback(f, &s, &granted, 2), &f->err);
    assert_mlo_ok(mlo_token_create(f->conn, &root, "plain", MLO_PROMOTER, 0, 0, text, NULL, &f->err),
                  &f->err);
    assert_mlo_ok(mlo_token_check(f->conn, text, &who, &f->err), &f->err);
    assert_true(who.rollback == MLO_RIGHT_BY_ROLE);
}

static void test_history__the_server_cannot_change_it(void **state)
{
    static const char *const tables[] = {"approval", "approval_end", "quarantine", "quarantine_end"};
    static const char *const verbs[] = {"UPDATE %s SET audit_seq = 0", "DELETE FROM %s",
                                        "TRUNCATE %s CASCADE"};
    struct pg_fixture *f = *state;
    for (size_t t = 0; t < MLO_COUNT(tables); t++) {
        for (size_t v = 0; v < MLO_COUNT(verbs); v++) {
            struct mlo_buf text = MLO_BUF_INIT;
            const char *at = strstr(verbs[v], "%s");
            mlo_buf_printf(&text, "%.*s%s%s", (int)(at - verbs[v]), verbs[v], tables[t], at + 2);
            enum mlo_status status = mlo_db_exec_text(f->conn, mlo_buf_str(&text), &f->err);
            if (status != MLO_EFORBIDDEN)
                fail_msg("%s: %s", mlo_buf_str(&text), mlo_status_info(status)->code);
            mlo_buf_clear(&text);
        }
    }
}

enum { AT_ONCE = 20 };

struct mover {
    struct pg_fixture *f;
    const struct shop *s;
    enum mlo_status status;
};

static void *roll_back_at_once(void *arg)
{
    struct mover *m = arg;
    struct mlo_error err = {0};
    struct mlo_db_conn *conn;
    struct mlo_move move;
    int64_t two = 2;
    struct mlo_rollback r = {
        .model_id = m->s->model_id, .stage = "production", .reason = "all at once", .if_match = &two};
    m->status = mlo_db_acquire(m->f->server, &conn, &err);
    if (m->status == MLO_OK) {
        m->status = mlo_stage_rollback(conn, &manager, &r, &move, &err);
        mlo_db_release(conn);
    }
    return NULL;
}

static void test_rollback__of_many_at_once_one_wins(void **state)
{
    struct pg_fixture *f = *state;
    struct shop s = shop(f);
    pthread_t threads[AT_ONCE];
    struct mover m[AT_ONCE];
    int won = 0, stale = 0;
    json_t *list;
    assert_mlo_ok(promote(f, &s, 1, "production", 0, NULL), &f->err);
    assert_mlo_ok(promote(f, &s, 2, "production", 1, NULL), &f->err);
    for (int i = 0; i < AT_ONCE; i++) {
        m[i] = (struct mover){.f = f, .s = &s};
        assert_int_equal(pthread_create(&threads[i], NULL, roll_back_at_once, &m[i]), 0);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        pthread_join(threads[i], NULL);
        won += m[i].status == MLO_OK;
        stale += m[i].status == MLO_EPRECONDITION;
    }
    assert_int_equal(won, 1);
    assert_int_equal(stale, AT_ONCE - 1);
    assert_mlo_ok(mlo_quarantine_list(f->conn, s.model_id, true, NULL, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 1);
    json_decref(list);
}

static int allocations_left; /* of jansson's; then one fails */

static void *allocate(size_t size)
{
    return allocations_left-- == 0 ? NULL : malloc(size);
}

/* Wherever the memory ends: a member whose mark cannot be made is not taken for one who is not there, whom a
 * form would add. */
static void test_member__without_memory_is_not_nobody(void **state)
{
    struct pg_fixture *f = *state;
    struct mlo_member_settings settings = {.kind = MLO_KIND_PERSON, .role = MLO_VIEWER};
    int64_t project;
    bool made, failed = true;
    json_t *member;
    json_malloc_t malloc_before;
    json_free_t free_before;
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "fashion", &project, &f->err), &f->err);
    assert_mlo_ok(mlo_member_set(f->conn, &root, project, "rosa", &settings, &made, &member, &f->err),
                  &f->err);
    json_decref(member);
    settings.role = MLO_ADMIN;
    settings.seen = "";
    json_get_alloc_funcs(&malloc_before, &free_before);
    for (int fine = 0; failed; fine++) {
        allocations_left = fine;
        json_set_alloc_funcs(allocate, free);
        enum mlo_status status =
            mlo_member_set(f->conn, &root, project, "rosa", &settings, &made, &member, &f->err);
        json_set_alloc_funcs(malloc_before, free_before);
        failed = allocations_left < 0;
        if (status != MLO_ECONFLICT && !(failed && status == MLO_ENOMEM))
            fail_msg("%s after %d allocations", mlo_status_info(status)->code, fine);
    }
    assert_mlo_ok(mlo_member_get(f->conn, project, "rosa", &member, &f->err), &f->err);
    assert_string_equal(mlo_json_str(member, "role", ""), "viewer");
    json_decref(member);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_approval__two_that_are_not_the_author),
        TEST(test_approval__what_changes_voids_it),
        TEST(test_quarantine__what_was_rolled_back_stays_out),
        TEST(test_rollback__is_a_right_of_its_own),
        TEST(test_rollback__of_many_at_once_one_wins),
        TEST(test_history__the_server_cannot_change_it),
        TEST(test_member__without_memory_is_not_nobody),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
