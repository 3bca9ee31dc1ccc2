/* Comments on versions and releases. */
#include <string.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;
static const struct mlo_actor viewer = {.name = "guest", .role = MLO_VIEWER, .via = "api"};

struct place {
    int64_t project, model;
    struct mlo_version_info version;
};

/* A model whose version is release 1, in staging. */
static struct place released(struct pg_fixture *f)
{
    struct place at;
    struct mlo_manifest_blob blob = {.role = "model", .name = "m.onnx"};
    struct mlo_release_choice choice = {"any", "source"};
    struct mlo_move move;
    int64_t none = 0;
    mlo_digest_of("x", 1, &blob.digest);
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "shop", &at.project, &f->err), &f->err);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, at.project, "net", &at.model, &f->err), &f->err);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, at.project, &blob.digest, 1, &f->err), &f->err);
    assert_mlo_ok(mlo_version_create(f->conn, &root, at.model, "", &blob, 1, &at.version, &f->err), &f->err);
    struct mlo_promotion p = {.model_id = at.model,
                              .choices = &choice,
                              .choice_count = 1,
                              .stage = "staging",
                              .reason = "try",
                              .if_match = &none};
    assert_mlo_ok(mlo_stage_promote(f->conn, &root, &p, &move, &f->err), &f->err);
    return at;
}

static enum mlo_status say(struct pg_fixture *f, const struct mlo_actor *who, const struct mlo_comment_on *on,
                           const char *text)
{
    json_t *made = NULL;
    memset(&f->err, 0, sizeof f->err);
    enum mlo_status status = mlo_comment_add(f->conn, who, on, text, &made, &f->err);
    if (status == MLO_OK) {
        assert_string_equal(mlo_json_str(made, "text", ""), text);
        assert_string_equal(mlo_json_str(made, "actor", ""), who->name);
    }
    json_decref(made);
    return status;
}

static void test_comments__are_listed_with_those_on_releases(void **state)
{
    struct pg_fixture *f = *state;
    struct place at = released(f);
    const struct mlo_comment_on version = {.model_id = at.model, .version_id = at.version.id},
                                release = {.model_id = at.model, .release = 1},
                                nowhere = {.model_id = at.model, .release = 9},
                                other = {.model_id = at.model + 1, .version_id = at.version.id};
    struct mlo_page two = {.limit = 2};
    json_t *list = NULL;
    assert_mlo_ok(say(f, &root, &version, "first"), &f->err);
    assert_mlo_ok(say(f, &root, &release, "slow on the old machines\nwatch p99"), &f->err);
    assert_mlo_ok(say(f, &root, &version, "third"), &f->err);
    assert_int_equal(say(f, &root, &nowhere, "?"), MLO_ENOTFOUND);
    assert_int_equal(say(f, &root, &other, "?"), MLO_ENOTFOUND); /* of another model */
    assert_mlo_ok(mlo_comment_list(f->conn, &version, &two, &list, &f->err), &f->err);
    const json_t *items = json_object_get(list, "items");
    assert_int_equal(json_array_size(items), 2);
    assert_string_equal(mlo_json_str(json_array_get(items, 0), "text", ""), "third");
    assert_int_equal(mlo_json_i64(json_array_get(items, 1), "release", 0), 1);
    assert_int_equal(mlo_json_i64(json_array_get(items, 1), "version", 0), 1);
    struct mlo_page more = {.limit = 2, .cursor = mlo_json_str(list, "next", "")};
    json_t *rest = NULL;
    assert_mlo_ok(mlo_comment_list(f->conn, &version, &more, &rest, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(rest, "items")), 1);
    json_decref(rest);
    json_decref(list);
    assert_mlo_ok(mlo_comment_list(f->conn, &release, NULL, &list, &f->err), &f->err);
    assert_int_equal(json_array_size(json_object_get(list, "items")), 1);
    json_decref(list);
    assert_int_equal(mlo_comment_list(f->conn, &nowhere, NULL, &list, &f->err), MLO_ENOTFOUND);
}

static void test_comments__are_checked_and_audited(void **state)
{
    struct pg_fixture *f = *state;
    struct place at = released(f);
    const struct mlo_comment_on on = {.model_id = at.model, .version_id = at.version.id};
    const struct mlo_audit_filter filter = {.action = "comment."};
    char *longest = malloc(2 * MLO_COMMENT_MAX + 3);
    json_t *list = NULL;
    for (int i = 0; i <= MLO_COMMENT_MAX; i++)
        memcpy(longest + 2 * i, "\xc3\xa4", 2); /* a character of two bytes */
    longest[2 * MLO_COMMENT_MAX + 2] = '\0';
    assert_int_equal(say(f, &root, &on, longest), MLO_EINVAL);
    longest[2 * MLO_COMMENT_MAX] = '\0';
    assert_mlo_ok(say(f, &root, &on, longest), &f->err);
    free(longest);
    static const char *const bad[] = {"", " \n\t", "a\x1b[2Jb", "\x7f", "not UTF-8: \xff"};
    for (size_t i = 0; i < MLO_COUNT(bad); i++)
        assert_int_equal(say(f, &root, &on, bad[i]), MLO_EINVAL);
    assert_int_equal(say(f, &viewer, &on, "let me in"), MLO_EFORBIDDEN);
    assert_mlo_ok(say(f, &root, &on, "kept"), &f->err);
    assert_mlo_ok(mlo_audit_list(f->conn, at.project, &filter, NULL, &list, &f->err), &f->err);
    const json_t *items = json_object_get(list, "items"), *newest = json_array_get(items, 0);
    assert_int_equal(json_array_size(items), 2);
    assert_string_equal(mlo_json_str(newest, "object", ""), "shop/net@1");
    assert_string_equal(mlo_json_str(json_object_get(newest, "after"), "text", ""), "kept");
    json_decref(list);
}

/* The server's role cannot rewrite what was said. */
static void test_comments__stay_as_they_are(void **state)
{
    struct pg_fixture *f = *state;
    struct place at = released(f);
    const struct mlo_comment_on on = {.model_id = at.model, .version_id = at.version.id};
    assert_mlo_ok(say(f, &root, &on, "said"), &f->err);
    static const char *const tries[] = {"UPDATE mlopt.comment SET text = 'unsaid'",
                                        "DELETE FROM mlopt.comment", "TRUNCATE mlopt.comment"};
    for (size_t i = 0; i < MLO_COUNT(tries); i++) {
        struct mlo_error refused = {0};
        assert_int_equal(mlo_db_exec_text(f->conn, tries[i], &refused), MLO_EFORBIDDEN);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_comments__are_listed_with_those_on_releases),
        TEST(test_comments__are_checked_and_audited),
        TEST(test_comments__stay_as_they_are),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
