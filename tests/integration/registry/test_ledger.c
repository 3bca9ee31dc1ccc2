/* The ledger: what is recorded, what becomes of it. */
#include <string.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

static int64_t project(struct pg_fixture *f, const char *name)
{
    int64_t id;
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, name, &id, &f->err), &f->err);
    return id;
}

static int64_t entry(struct pg_fixture *f, int64_t project_id)
{
    const struct mlo_audit_event event = {.action = "stage.promote", .object = "shop/cnn:production"};
    int64_t seq;
    assert_mlo_ok(mlo_audit_append(f->conn, project_id, &root, &event, &seq, &f->err), &f->err);
    return seq;
}

static void test_ledger__append_takes_what_git_can_hold(void **state)
{
    static const char *const bad[] = {"",       "/x",       "x/",        "a//b",       "../x",
                                      ".git/x", "a/.git",   "a b",       "keys/x.pub", "allowed_signers",
                                      "x\n",    "\xc3\xa4", "README.md", "keys"};
    struct pg_fixture *f = *state;
    int64_t p = project(f, "shop"), seq = entry(f, p);
    struct mlo_ledger_file file = {.text = "{}\n", .size = 3};
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        file.path = bad[i];
        assert_mlo_status(mlo_ledger_append(f->conn, p, seq, &file, 1, &f->err), MLO_EINVAL, &f->err);
    }
    file = (struct mlo_ledger_file){.path = "policy/cnn.yaml", .text = "\xff", .size = 1};
    assert_mlo_status(mlo_ledger_append(f->conn, p, seq, &file, 1, &f->err), MLO_EINVAL, &f->err);
    file = (struct mlo_ledger_file){.path = "policy/cnn.yaml", .text = "a: 1\n", .size = 5};
    assert_mlo_status(mlo_ledger_append(f->conn, p, seq + 1, &file, 1, &f->err), MLO_ENOTFOUND, &f->err);
    assert_mlo_ok(mlo_ledger_append(f->conn, p, seq, &file, 1, &f->err), &f->err);
    assert_mlo_status(mlo_ledger_append(f->conn, p, seq, &file, 1, &f->err), MLO_EEXISTS, &f->err);
}

#define WITH_DB(test) cmocka_unit_test_setup_teardown(test, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DB(test_ledger__append_takes_what_git_can_hold),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
