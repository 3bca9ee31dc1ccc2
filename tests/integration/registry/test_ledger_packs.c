/* Packs in the repository of a ledger: which there are, that they are the same wherever they are made, and
 * what a kill leaves. */
#include "tests/integration/registry/ledger_fixture.h"

static struct mlo_ledger *without_grace(struct shop *s, mlo_ledger_step_fn *on_step, void *arg)
{
    struct mlo_ledger *ledger;
    const struct mlo_ledger_options options = {.db = s->f->server,
                                               .dir = s->dir,
                                               .pack_grace_s = MLO_LEDGER_NO_GRACE,
                                               .on_step = on_step,
                                               .step_arg = arg};
    assert_mlo_ok(mlo_ledger_open(&options, &ledger, &s->f->err), &s->f->err);
    return ledger;
}

static void write_into(struct shop *s, struct mlo_ledger *ledger)
{
    assert_mlo_ok(mlo_ledger_sync(ledger, s->f->conn, s->project_id, &s->f->err), &s->f->err);
}

static void assert_says(const char *dir, const char *command, const char *wanted)
{
    struct mlo_buf out = MLO_BUF_INIT;
    assert_shell(dir, &out, "%s", command);
    if (strcmp(mlo_buf_str(&out), wanted) != 0)
        fail_msg("%s: %s instead of %s", command, mlo_buf_str(&out), wanted);
    mlo_buf_clear(&out);
}

#define LOOSE "find objects -path 'objects/[0-9a-f][0-9a-f]/*' | wc -l"
#define PACKS "ls objects/pack | grep '[.]pack$' | wc -l"

static void test_packs__follow_from_the_commits(void **state)
{
    struct shop s = shop_open(*state);
    struct mlo_buf ids = MLO_BUF_INIT, listed = MLO_BUF_INIT, again = MLO_BUF_INIT;
    char *path = mlo_ledger_repository(s.ledger, "shop");
    struct mlo_ledger *now = without_grace(&s, NULL, NULL);
    ledger_events(s.f, s.project_id, 0, 31);
    shop_sync(&s);
    assert_says(path, PACKS, "0\n");
    /* beside what it replaces */
    ledger_events(s.f, s.project_id, 31, 1);
    shop_sync(&s);
    assert_says(
        path, PACKS " && git count-objects -v | grep -c '^prune-packable: 0'; " LOOSE " | xargs test 60 -lt",
        "1\n0\n");
    /* instead of it */
    write_into(&s, now);
    assert_says(path, PACKS " && " LOOSE, "1\n0\n");
    /* 256 in one, 32 in another, 12 loose; those in between are gone */
    ledger_events(s.f, s.project_id, 32, 268);
    write_into(&s, now);
    write_into(&s, now);
    assert_says(path, PACKS " && git rev-list --count main", "2\n300\n");
    assert_says(path, "git fsck --strict --full && git rev-list --count main", "300\n");
    shop_ids(&s, &ids);
    mlo_ledger_packs_list(path, &listed);
    assert_int_equal(listed.len, 2 * strlen("P pack-0123456789012345678901234567890123456789.pack\n") + 1);
    /* anywhere else, at once: the same bytes by the same names, which are what stock git calls them */
    mlo_fs_remove_tree(path);
    shop_sync(&s);
    shop_ids(&s, &again);
    assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&again));
    mlo_buf_reset(&again);
    mlo_ledger_packs_list(path, &again);
    assert_string_equal(mlo_buf_str(&listed), mlo_buf_str(&again));
    assert_shell(path, &again,
                 "for p in objects/pack/*.pack; do test pack-$(git index-pack --stdin < $p | cut -c6-) = "
                 "$(basename $p .pack) && git verify-pack $p || exit 1; done");
    /* a pack that is gone, where nothing else holds its objects */
    write_into(&s, now);
    assert_shell(path, &again, "rm -f objects/pack/*.pack");
    write_into(&s, now);
    assert_says(path, "git fsck --strict --full && git rev-list --count main", "300\n");
    /* and a list that is none */
    assert_shell(path, &again, "echo '{' > packs");
    write_into(&s, now);
    shop_ids(&s, &again);
    assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&again));
    mlo_ledger_close(now);
    mlo_buf_clear(&ids);
    mlo_buf_clear(&listed);
    mlo_buf_clear(&again);
    free(path);
    shop_close(&s);
}

/* A byte of what is to be the only copy changes before the other copies go. */
static void test_packs__a_damaged_one_is_made_again(void **state)
{
    static const char *const suffixes[] = {"pack", "idx"};
    struct shop s = shop_open(*state);
    struct mlo_buf ids = MLO_BUF_INIT, again = MLO_BUF_INIT, out = MLO_BUF_INIT;
    char *path = mlo_ledger_repository(s.ledger, "shop");
    struct mlo_ledger *now = without_grace(&s, NULL, NULL);
    ledger_events(s.f, s.project_id, 0, 33);
    shop_sync(&s);
    shop_ids(&s, &ids);
    for (size_t i = 0; i < MLO_COUNT(suffixes); i++) {
        mlo_fs_remove_tree(path);
        shop_sync(&s);
        assert_says(path, PACKS, "1\n");
        assert_shell(
            path, &out,
            "f=$(ls objects/pack/*.%s) && chmod u+w $f && dd if=/dev/zero of=$f bs=1 seek=600 count=8 "
            "conv=notrunc",
            suffixes[i]);
        write_into(&s, now);
        assert_says(path, "git fsck --strict --full && git rev-list --count main", "33\n");
        assert_shell(path, &out, "for p in objects/pack/*.pack; do git verify-pack $p || exit 1; done");
        assert_says(path, PACKS, "1\n");
        shop_ids(&s, &again);
        assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&again));
    }
    /* the one of 256, before those that it replaces go */
    ledger_events(s.f, s.project_id, 33, 200);
    write_into(&s, now);
    ledger_events(s.f, s.project_id, 233, 23);
    shop_sync(&s);
    shop_ids(&s, &ids);
    assert_shell(path, &out,
                 "f=$(ls -S objects/pack/*.pack | head -1) && chmod u+w $f && dd if=/dev/zero of=$f bs=1 "
                 "seek=600 count=8 conv=notrunc");
    write_into(&s, now);
    assert_says(path, "git fsck --strict --full && git rev-list --count main && " PACKS " && " LOOSE,
                "256\n1\n0\n");
    shop_ids(&s, &again);
    assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&again));
    mlo_ledger_close(now);
    mlo_buf_clear(&ids);
    mlo_buf_clear(&again);
    mlo_buf_clear(&out);
    free(path);
    shop_close(&s);
}

/* Only at the steps of packing: those of writing are another test's. */
static void die_while_packing(void *arg, const char *step)
{
    static const char *const steps[] = {"a pack beside", "pack", "idx", "packs listed",
                                        "before what it replaces goes"};
    int *left = arg;
    for (size_t i = 0; i < MLO_COUNT(steps); i++)
        if (strcmp(step, steps[i]) == 0 && --*left == 0)
            kill(getpid(), SIGKILL);
}

static bool killed_at(struct shop *s, int step)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) { /* nothing of the parent's connections is used here */
        struct mlo_error err = {0};
        struct mlo_ledger *ledger = NULL;
        struct mlo_db *db = pg_fixture_pool(s->f, MLO_ROLE_SERVER, 2);
        struct mlo_db_conn *conn;
        const struct mlo_ledger_options options = {.db = db,
                                                   .dir = s->dir,
                                                   .pack_grace_s = MLO_LEDGER_NO_GRACE,
                                                   .on_step = die_while_packing,
                                                   .step_arg = &step};
        bool ok = mlo_ledger_open(&options, &ledger, &err) == MLO_OK &&
                  mlo_db_acquire(db, &conn, &err) == MLO_OK &&
                  mlo_ledger_sync(ledger, conn, s->project_id, &err) == MLO_OK;
        if (!ok)
            fprintf(stderr, "child: %s (%s)\n", err.message, err.where);
        raise(ok ? SIGTERM : SIGABRT); /* no exit code: valgrind has its own for what is left open here */
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM));
    return WTERMSIG(status) == SIGKILL;
}

static void test_packs__a_kill_at_every_step_heals(void **state)
{
    struct shop s = shop_open(*state);
    struct mlo_buf ids = MLO_BUF_INIT, again = MLO_BUF_INIT, out = MLO_BUF_INIT;
    char *path = mlo_ledger_repository(s.ledger, "shop");
    struct mlo_ledger *now = without_grace(&s, NULL, NULL);
    int steps = 0;
    ledger_events(s.f, s.project_id, 0, 33);
    shop_sync(&s);
    shop_ids(&s, &ids);
    for (bool killed = true; killed; steps++) {
        mlo_fs_remove_tree(path);
        killed = killed_at(&s, steps + 1);
        /* as it lies there, somebody may clone it */
        assert_shell(path, &out, "git fsck --strict --full");
        shop_ids(&s, &again);
        assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&again));
        write_into(&s, now);
        write_into(&s, now);
        assert_shell(path, &out, "git fsck --strict --full && test ! -e packing");
        assert_says(path, PACKS, "1\n");
        shop_ids(&s, &again);
        assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&again));
    }
    assert_true(steps > 5); /* three of the pack, the list, what it replaces */
    mlo_ledger_close(now);
    mlo_buf_clear(&ids);
    mlo_buf_clear(&again);
    mlo_buf_clear(&out);
    free(path);
    shop_close(&s);
}

#define WITH_DB(test) cmocka_unit_test_setup_teardown(test, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DB(test_packs__follow_from_the_commits),
        WITH_DB(test_packs__a_damaged_one_is_made_again),
        WITH_DB(test_packs__a_kill_at_every_step_heals),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
