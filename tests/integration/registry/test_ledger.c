/* The ledger: what is recorded, what becomes of it. */
#include <pthread.h>

#include "base/ssh_sign.h"
#include "tests/integration/registry/ledger_fixture.h"

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

static void test_ledger__stock_git_checks_it(void **state)
{
    struct shop s = shop_open(*state);
    struct mlo_buf out = MLO_BUF_INIT;
    char *path = mlo_ledger_repository(s.ledger, "shop");
    shop_sync(&s); /* nothing yet */
    shop_promote(&s, "faster");
    shop_promote(&s, "more accurate\n\nAudit: 1 sha256:0000");
    int64_t generation = s.generation;
    const struct mlo_rollback back = {.model_id = s.model_id,
                                      .stage = "production",
                                      .reason = "it was slow \x01<b> \"audit_seq\": 0 \\\"audit_seq\\\": 0",
                                      .if_match = &generation};
    struct mlo_move move;
    assert_mlo_ok(mlo_stage_rollback(s.f->conn, &root, &back, &move, &s.f->err), &s.f->err);
    shop_sync(&s);
    shop_sync(&s);
    shop_check_with_git(&s, 3);
    assert_shell(path, &out, "git -c gpg.ssh.allowedSignersFile=%s/allowed log --show-signature main", s.dir);
    assert_non_null(
        strstr(mlo_buf_str(&out), "Good \"git\" signature for ledger@mlopt with ED25519 key SHA256:"));
    assert_non_null(strstr(mlo_buf_str(&out), "stage.rollback shop/cnn:production"));
    assert_non_null(strstr(mlo_buf_str(&out), "it was slow  <b>"));
    assert_shell(path, &out, "git show main:production/cnn.json");
    json_t *file = json_loads(mlo_buf_str(&out), 0, NULL);
    assert_string_equal(mlo_json_str(file, "model", ""), "shop/cnn");
    assert_int_equal(mlo_json_i64(file, "generation", 0), 3);
    assert_int_equal(mlo_json_i64(json_object_get(file, "release"), "version", 0), 1);
    json_t *told = json_object_get(file, "move"), *stage, *value;
    assert_string_equal(mlo_json_str(told, "kind", ""), "rollback");
    assert_string_equal(mlo_json_str(told, "reason", ""), back.reason);
    assert_true(mlo_json_i64(told, "audit_seq", 0) == move.audit_seq);
    /* it was written before the move, and says what the stage came to be */
    assert_mlo_ok(mlo_stage_get(s.f->conn, s.model_id, "production", &stage, &s.f->err), &s.f->err);
    const char *member;
    json_object_foreach(stage, member, value) assert_true(json_equal(json_object_get(file, member), value));
    json_decref(stage);
    json_decref(file);
    assert_shell(path, &out, "git show main~1:production/cnn.json");
    file = json_loads(mlo_buf_str(&out), 0, NULL);
    assert_int_equal(mlo_json_i64(json_object_get(file, "previous"), "version", 0), 1);
    assert_int_equal(mlo_json_i64(json_object_get(file, "release"), "version", 0), 2);
    json_decref(file);
    /* the trailer names the entry and its hash */
    struct mlo_audit_head head;
    char expected[160], hash[MLO_DIGEST_TEXT_SIZE];
    assert_mlo_ok(mlo_audit_head(s.f->conn, s.project_id, &head, &s.f->err), &s.f->err);
    snprintf(expected, sizeof expected, "%lld %s\n", (long long)head.seq, mlo_digest_text(&head.hash, hash));
    assert_int_equal(head.seq, move.audit_seq);
    assert_shell(path, &out, "git log -1 --format='%%(trailers:key=Audit,valueonly,separator=)' main");
    assert_string_equal(mlo_buf_str(&out), expected);
    mlo_buf_clear(&out);
    free(path);
    shop_close(&s);
}

static void test_ledger__rebuilds_to_the_same_ids(void **state)
{
    struct shop s = shop_open(*state);
    struct mlo_buf ids = MLO_BUF_INIT, again = MLO_BUF_INIT;
    char *path = mlo_ledger_repository(s.ledger, "shop");
    for (int i = 0; i < 5; i++)
        shop_promote(&s, "next");
    shop_sync(&s);
    shop_ids(&s, &ids);
    mlo_fs_remove_tree(path);
    shop_sync(&s);
    shop_ids(&s, &again);
    assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&again));
    /* a branch that is not the ledger's, and a half of a repository */
    assert_shell(
        path, &again,
        "git update-ref refs/heads/main $(git -c user.name=x -c user.email=x commit-tree main^{tree} -m x)");
    shop_sync(&s);
    shop_ids(&s, &again);
    assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&again));
    assert_shell(path, &again, "rm -rf HEAD objects/1* objects/2*");
    shop_sync(&s);
    shop_check_with_git(&s, 5);
    mlo_buf_clear(&ids);
    mlo_buf_clear(&again);
    free(path);
    shop_close(&s);
}

static void test_ledger__rotation_keeps_old_signatures_valid(void **state)
{
    struct shop s = shop_open(*state);
    struct mlo_buf out = MLO_BUF_INIT;
    char *path = mlo_ledger_repository(s.ledger, "shop");
    json_t *keys;
    shop_promote(&s, "with the first key");
    shop_sync(&s);
    shop_promote(&s, "before the rotation, written after it");
    usleep(1100 * 1000); /* so that the new key begins in another second */
    assert_mlo_ok(mlo_ledger_rotate(s.ledger, s.f->conn, &root, &s.f->err), &s.f->err);
    shop_promote(&s, "with the second");
    shop_sync(&s);
    shop_check_with_git(&s, 3);
    assert_mlo_ok(mlo_keys_list(s.f->conn, &keys, &s.f->err), &s.f->err);
    assert_int_equal(json_array_size(keys), 2);
    const json_t *first = json_array_get(keys, 0), *second = json_array_get(keys, 1);
    assert_true(json_is_string(json_object_get(first, "retired_at")));
    assert_true(json_is_null(json_object_get(second, "retired_at")));
    assert_string_equal(mlo_json_str(second, "endorser", ""), mlo_json_str(first, "fingerprint", "?"));
    /* the one vouches for the other, in the words of ssh-keygen */
    assert_shell(path, &out,
                 "git show main:keys/2.pub > %s/2.pub && git show main:keys/2.sig > %s/2.sig && ssh-keygen "
                 "-Y verify -f "
                 "%s/allowed -I ledger@mlopt -n mlopt-key -s %s/2.sig -Overify-time=$(sed -n "
                 "'1s/.*valid-before=\"\\([0-9]*\\)Z.*/\\1Z/p' %s/allowed) < %s/2.pub",
                 s.dir, s.dir, s.dir, s.dir, s.dir, s.dir);
    /* the file is the new key's, and only its owner can read it */
    struct stat st;
    char *key = mlo_fs_join(s.dir, "ledger.key", NULL);
    assert_int_equal(stat(key, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    free(key);
    /* opened again it goes on with it */
    mlo_ledger_close(s.ledger);
    s.ledger = shop_ledger(&s, s.f->server, NULL, NULL, NULL);
    /* revoked from before it signed: git does not take its commit any more */
    assert_mlo_ok(mlo_keys_revoke(s.f->conn, &root, mlo_json_str(second, "fingerprint", ""),
                                  "2020-01-01T00:00:00Z", &s.f->err),
                  &s.f->err);
    assert_mlo_status(
        mlo_keys_revoke(s.f->conn, &root, mlo_json_str(second, "fingerprint", ""), NULL, &s.f->err),
        MLO_ECONFLICT, &s.f->err);
    shop_promote(&s, "nobody signs this");
    assert_mlo_status(mlo_ledger_sync(s.ledger, s.f->conn, s.project_id, &s.f->err), MLO_ECONFLICT,
                      &s.f->err);
    json_decref(keys);
    assert_mlo_ok(mlo_keys_list(s.f->conn, &keys, &s.f->err), &s.f->err);
    mlo_buf_reset(&out);
    mlo_keys_allowed_signers(keys, &out);
    char *allowed = mlo_fs_join(s.dir, "allowed", NULL);
    assert_mlo_ok(mlo_fs_write_atomic(allowed, out.data, out.len, &s.f->err), &s.f->err);
    assert_int_not_equal(
        shell(path, &out, "git -c gpg.ssh.allowedSignersFile=%s verify-commit main", allowed), 0);
    assert_int_equal(shell(path, &out, "git -c gpg.ssh.allowedSignersFile=%s verify-commit main~2", allowed),
                     0);
    free(allowed);
    json_decref(keys);
    mlo_buf_clear(&out);
    free(path);
    shop_close(&s);
}

static void test_keys__another_server_needs_the_same_file(void **state)
{
    struct shop s = shop_open(*state), other = {.f = s.f};
    struct mlo_ledger *ledger;
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-ledger-", &other.dir, &s.f->err), &s.f->err);
    const struct mlo_ledger_options options = {.db = s.f->server, .dir = other.dir};
    assert_mlo_status(mlo_ledger_open(&options, &ledger, &s.f->err), MLO_ECONFLICT, &s.f->err);
    assert_non_null(strstr(s.f->err.hint, "ledger.key"));
    char *from = mlo_fs_join(s.dir, "ledger.key", NULL), *to = mlo_fs_join(other.dir, "ledger.key", NULL);
    assert_false(mlo_fs_exists(to));
    struct mlo_buf out = MLO_BUF_INIT;
    assert_shell("/", &out, "cp -p %s %s", from, to);
    assert_mlo_ok(mlo_ledger_open(&options, &ledger, &s.f->err), &s.f->err);
    mlo_ledger_close(ledger);
    assert_shell("/", &out, "chmod 644 %s", to);
    assert_mlo_status(mlo_ledger_open(&options, &ledger, &s.f->err), MLO_EFORBIDDEN, &s.f->err);
    mlo_buf_clear(&out);
    free(from);
    free(to);
    mlo_fs_remove_tree(other.dir);
    free(other.dir);
    shop_close(&s);
}

static void test_roles__the_service_cannot_rewrite_the_ledger(void **state)
{
    static const char *const refused[] = {"UPDATE ledger_commit SET body = ''",
                                          "DELETE FROM ledger_commit",
                                          "TRUNCATE ledger_commit",
                                          "UPDATE ledger_event SET files = '[]'",
                                          "UPDATE ledger_head SET n = 0",
                                          "DELETE FROM signing_key",
                                          ("INSERT INTO ledger_commit SELECT project_id, n + 1, audit_seq + "
                                           "1, id, body, files FROM ledger_commit"),
                                          "UPDATE signing_key SET retired_at = NULL",
                                          "UPDATE signing_key SET valid_from = '2020-01-01'"};
    struct shop s = shop_open(*state);
    shop_promote(&s, "x");
    shop_sync(&s);
    usleep(1100 * 1000);
    assert_mlo_ok(mlo_ledger_rotate(s.ledger, s.f->conn, &root, &s.f->err), &s.f->err);
    for (size_t i = 0; i < MLO_COUNT(refused); i++)
        assert_mlo_status(mlo_db_exec_text(s.f->conn, refused[i], &s.f->err), MLO_EFORBIDDEN, &s.f->err);
    /* neither a gap nor the same twice */
    assert_mlo_status(
        mlo_db_exec_text(s.f->conn,
                         "SELECT ledger_commit_append(project_id, n + 1, audit_seq + 1, id, body, files, "
                         "'{}') FROM ledger_commit",
                         &s.f->err),
        MLO_ECONFLICT, &s.f->err);
    shop_close(&s);
}

/* --- crashes, and several at once --------------------------------------------------------------- */

static void die_at(void *arg, const char *step)
{
    int *left = arg;
    MLO_UNUSED(step);
    if (--*left == 0)
        kill(getpid(), SIGKILL);
}

/* A server that is killed at its step number `step`; false when it came to its end before. */
static bool killed_at(struct shop *s, int step, bool rotates)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) { /* nothing of the parent's connections is used here */
        struct mlo_error err = {0};
        struct mlo_ledger *ledger;
        struct mlo_db *db = pg_fixture_pool(s->f, MLO_ROLE_SERVER, 2);
        struct mlo_db_conn *conn;
        const struct mlo_ledger_options options = {
            .db = db, .dir = s->dir, .on_step = die_at, .step_arg = &step};
        bool ok = mlo_ledger_open(&options, &ledger, &err) == MLO_OK &&
                  mlo_db_acquire(db, &conn, &err) == MLO_OK &&
                  (!rotates || mlo_ledger_rotate(ledger, conn, &root, &err) == MLO_OK) &&
                  mlo_ledger_sync(ledger, conn, s->project_id, &err) == MLO_OK;
        if (!ok)
            fprintf(stderr, "child: %s (%s)\n", err.message, err.where);
        _exit(ok ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void test_ledger__a_kill_at_every_step_heals(void **state)
{
    struct shop s = shop_open(*state);
    struct mlo_buf ids = MLO_BUF_INIT, out = MLO_BUF_INIT;
    int steps = 0, commits = 0;
    for (bool killed = true; killed; steps++) {
        shop_promote(&s, "one");
        shop_promote(&s, "two");
        killed = killed_at(&s, steps + 1, false);
        commits += 2;
        shop_sync(&s); /* the next server */
        /* what was there is there, in the same order, and twice as many came */
        struct mlo_buf before = ids;
        memset(&ids, 0, sizeof ids);
        shop_ids(&s, &ids);
        assert_true(mlo_str_ends(mlo_buf_str(&ids), mlo_buf_str(&before)));
        assert_int_equal(ids.len, (size_t)commits * 41);
        mlo_buf_clear(&before);
    }
    assert_true(steps > 15); /* begin, composed, …, each object, the branch; for two commits */
    shop_check_with_git(&s, commits);
    mlo_buf_clear(&ids);
    mlo_buf_clear(&out);
    shop_close(&s);
}

static void test_keys__a_kill_while_rotating_heals(void **state)
{
    struct shop s = shop_open(*state);
    int steps = 0;
    for (bool killed = true; killed; steps++) {
        shop_promote(&s, "one");
        usleep(1100 * 1000);
        killed = killed_at(&s, steps + 1, true);
        mlo_ledger_close(s.ledger); /* it holds the key of before */
        s.ledger = shop_ledger(&s, s.f->server, NULL, NULL, NULL);
        shop_sync(&s);
        if (steps >= 4)
            break;
    }
    shop_check_with_git(&s, steps + 1);
    shop_close(&s);
}

struct server {
    struct shop *shop;
    struct mlo_ledger *ledger;
    enum mlo_status status;
    struct mlo_error err;
};

static void *serve(void *arg)
{
    struct server *server = arg;
    struct mlo_db_conn *conn;
    server->status = mlo_db_acquire(server->shop->f->server, &conn, &server->err);
    for (int i = 0; i < 20 && server->status == MLO_OK; i++)
        server->status = mlo_ledger_sync(server->ledger, conn, server->shop->project_id, &server->err);
    mlo_db_release(conn);
    return NULL;
}

static void test_ledger__two_servers_write_one_history(void **state)
{
    struct shop s = shop_open(*state), there = s;
    struct mlo_buf out = MLO_BUF_INIT, ids = MLO_BUF_INIT;
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-ledger-", &there.dir, &s.f->err), &s.f->err);
    assert_shell("/", &out, "cp -p %s/ledger.key %s/", s.dir, there.dir);
    there.ledger = shop_ledger(&there, s.f->server, NULL, NULL, NULL);
    struct server servers[2] = {{.shop = &s, .ledger = s.ledger}, {.shop = &there, .ledger = there.ledger}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, serve, &servers[i]), 0);
    for (int i = 0; i < 20; i++)
        shop_promote(&s, "meanwhile");
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_mlo_ok(servers[i].status, &servers[i].err);
    }
    shop_sync(&s);
    shop_sync(&there);
    shop_ids(&s, &ids);
    shop_ids(&there, &out);
    assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&out));
    shop_check_with_git(&s, 20);
    mlo_buf_clear(&ids);
    mlo_buf_clear(&out);
    shop_close(&there);
    shop_close(&s);
}

static void test_ledger__mirror_follows_and_refuses_another_history(void **state)
{
    struct shop s = shop_open(*state);
    struct mlo_buf out = MLO_BUF_INIT, ids = MLO_BUF_INIT;
    char *mirror = mlo_fs_join(s.dir, "mirror", NULL), *copy = mlo_fs_join(s.dir, "mirror", "shop.git", NULL);
    mlo_ledger_close(s.ledger);
    s.ledger = shop_ledger(&s, s.f->server, mirror, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        shop_promote(&s, "again");
        shop_sync(&s);
        assert_mlo_ok(mlo_ledger_push(s.ledger, "shop", &s.f->err), &s.f->err);
    }
    shop_ids(&s, &ids);
    assert_shell(copy, &out, "git rev-list main");
    assert_string_equal(mlo_buf_str(&ids), mlo_buf_str(&out));
    /* somebody made another history of the last commit */
    assert_shell(copy, &out,
                 "git update-ref refs/heads/main $(git -c user.name=x -c user.email=x commit-tree "
                 "main^{tree} -p main~1 "
                 "-m x)");
    shop_promote(&s, "more");
    shop_sync(&s);
    assert_mlo_status(mlo_ledger_push(s.ledger, "shop", &s.f->err), MLO_ECONFLICT, &s.f->err);
    mlo_buf_clear(&ids);
    mlo_buf_clear(&out);
    free(mirror);
    free(copy);
    shop_close(&s);
}

/* The thread does it unasked. */
static void test_ledger__thread_writes_what_comes(void **state)
{
    struct shop s = shop_open(*state);
    struct mlo_buf out = MLO_BUF_INIT;
    char *path = mlo_ledger_repository(s.ledger, "shop");
    assert_mlo_ok(mlo_ledger_start(s.ledger, &s.f->err), &s.f->err);
    shop_promote(&s, "x");
    mlo_ledger_kick(s.ledger);
    int patience = 1200;
    while (shell("/", &out, "git -C %s rev-parse --verify -q main", path) != 0 && --patience)
        usleep(100 * 1000);
    assert_true(patience > 0);
    mlo_buf_clear(&out);
    free(path);
    shop_close(&s);
}

#define WITH_DB(test) cmocka_unit_test_setup_teardown(test, pg_fixture_setup, pg_fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DB(test_ledger__append_takes_what_git_can_hold),
        WITH_DB(test_ledger__stock_git_checks_it),
        WITH_DB(test_ledger__rebuilds_to_the_same_ids),
        WITH_DB(test_ledger__rotation_keeps_old_signatures_valid),
        WITH_DB(test_keys__another_server_needs_the_same_file),
        WITH_DB(test_roles__the_service_cannot_rewrite_the_ledger),
        WITH_DB(test_ledger__a_kill_at_every_step_heals),
        WITH_DB(test_keys__a_kill_while_rotating_heals),
        WITH_DB(test_ledger__two_servers_write_one_history),
        WITH_DB(test_ledger__mirror_follows_and_refuses_another_history),
        WITH_DB(test_ledger__thread_writes_what_comes),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
