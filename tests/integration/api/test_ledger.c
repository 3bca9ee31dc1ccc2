/* Ledgers as clients see them: stock git over plain HTTP, and `mlopt audit verify`, which trusts no server.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/integration/api/api_fixture.h"
#include "tests/integration/registry/ledger_fixture.h"

/* Promotes version `n` of demo/cnn to production. */
static void promote(struct api *api, int n)
{
    char path[] = "/v1/projects/demo/models/cnn/promotions", body[160], match[32], text[32];
    const char *const headers[] = {match, NULL};
    struct reply reply = {0};
    snprintf(text, sizeof text, "version %d", n);
    api_version(api, "cnn", text, "");
    snprintf(match, sizeof match, "If-Match: \"%d\"", n - 1);
    snprintf(body, sizeof body,
             "{\"stage\": \"production\", \"version\": %d, \"variants\": {\"any\": \"source\"}, \"reason\": "
             "\"nr %d\"}",
             n, n);
    api_call(api, &reply, "POST", path, api->token[MLO_PROMOTER], body, headers);
    assert_http(&reply, 201);
    reply_clear(&reply);
}

static void test_ledger__stock_git_clones_and_checks_it(void **state)
{
    struct api *api = *state;
    struct reply reply = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    unsigned port = mlo_http_port(api->http);
    promote(api, 1);
    promote(api, 2);
    /* the token is the password, or comes as a header */
    assert_shell(api->dir, &out, "git clone -q http://git:%s@127.0.0.1:%u/v1/projects/demo/ledger.git clone",
                 api->token[MLO_VIEWER], port);
    assert_shell(api->dir, &out,
                 "git -c http.extraHeader='Authorization: Bearer %s' clone -q "
                 "http://127.0.0.1:%u/v1/projects/demo/ledger.git other",
                 api->token[MLO_VIEWER], port);
    assert_int_not_equal(
        shell(api->dir, &out, "git clone -q http://127.0.0.1:%u/v1/projects/demo/ledger.git none", port), 0);
    assert_int_not_equal(shell(api->dir, &out,
                               "git clone -q http://git:wrong@127.0.0.1:%u/v1/projects/demo/ledger.git none",
                               port),
                         0);
    api_call(api, &reply, "GET", "/v1/keys/allowed_signers", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    char *allowed = mlo_fs_join(api->dir, "allowed", NULL);
    assert_mlo_ok(mlo_fs_write_atomic(allowed, reply.body.data, reply.body.len, &api->pg->err),
                  &api->pg->err);
    assert_shell(
        api->dir, &out,
        "cd clone && git config gpg.ssh.allowedSignersFile ../allowed && git log --show-signature && git "
        "verify-commit HEAD && git verify-commit HEAD~1 && git fsck --strict && cmp allowed_signers "
        "../allowed");
    assert_holds(mlo_buf_str(&out), "Good \"git\" signature");
    assert_shell(api->dir, &out, "cat clone/production/cnn.json");
    assert_holds(mlo_buf_str(&out), "\"model\": \"demo/cnn\"");
    assert_holds(mlo_buf_str(&out), "\"reason\": \"nr 2\"");
    /* what comes later is pulled */
    promote(api, 3);
    assert_shell(api->dir, &out,
                 "cd clone && git pull -q && git verify-commit HEAD && git rev-list --count HEAD");
    assert_holds(mlo_buf_str(&out), "3\n");
    /* nothing but git's files, and nobody else's */
    static const char *const none[] = {"objects/00/../../../ledger.key", "objects/ab/cdef",
                                       "objects/pack/pack-x.pack", "objects/info/alternates"};
    for (size_t i = 0; i < MLO_COUNT(none); i++) {
        char path[160];
        snprintf(path, sizeof path, "/v1/projects/demo/ledger.git/%s", none[i]);
        api_call(api, &reply, "GET", path, api->token[MLO_ADMIN], NULL, NULL);
        assert_http(&reply, 404);
    }
    char stranger[MLO_TOKEN_TEXT_SIZE];
    const struct mlo_actor system = MLO_ACTOR_SYSTEM;
    int64_t other;
    assert_mlo_ok(mlo_project_create(api->pg->conn, &system, "other", "", &other, &api->pg->err),
                  &api->pg->err);
    assert_mlo_ok(mlo_token_create(api->pg->conn, &system, "stranger", MLO_ADMIN, other, 0, stranger, NULL,
                                   &api->pg->err),
                  &api->pg->err);
    api_call(api, &reply, "GET", "/v1/projects/demo/ledger.git/info/refs", stranger, NULL, NULL);
    assert_true(reply.status == 403 || reply.status == 404);
    /* an empty ledger is an empty repository */
    assert_shell(api->dir, &out, "git clone -q http://git:%s@127.0.0.1:%u/v1/projects/other/ledger.git empty",
                 stranger, port);
    /* keys are an admin's of the whole installation */
    api_call(api, &reply, "POST", "/v1/keys/rotations", stranger, "{}", NULL);
    assert_http(&reply, 403);
    reply_clear(&reply);
    mlo_buf_clear(&out);
    free(allowed);
}

/* `mlopt audit demo verify …` with a state of its own; the exit code. */
static int verify(struct api *api, struct mlo_buf *out, const char *more)
{
    return shell(api->dir, out,
                 "MLOPT_URL=http://127.0.0.1:%u MLOPT_TOKEN=%s XDG_STATE_HOME=%s/state "
                 "XDG_CONFIG_HOME=%s/config no_proxy='*' "
                 "%s audit demo verify %s",
                 mlo_http_port(api->http), api->token[MLO_ADMIN], api->dir, api->dir, getenv("MLOPT"), more);
}

static void as_owner(struct api *api, const char *sql)
{
    struct mlo_db_conn *conn;
    assert_mlo_ok(mlo_db_acquire(api->pg->owner, &conn, &api->pg->err), &api->pg->err);
    assert_mlo_ok(mlo_db_exec_text(conn, sql, &api->pg->err), &api->pg->err);
    mlo_db_release(conn);
}

/* Changes something, and looks what client and server say of it; `undo` brings it back. */
static void tamper(struct api *api, const char *what, const char *sql, const char *said, const char *undo,
                   bool server_knows)
{
    struct mlo_buf out = MLO_BUF_INIT;
    struct reply reply = {0};
    as_owner(api, sql);
    int code = verify(api, &out, "");
    if (code == 0 || !strstr(mlo_buf_str(&out), said))
        fail_msg("%s: exit code %d, no '%s' in: %s", what, code, said, mlo_buf_str(&out));
    api_call(api, &reply, "GET", "/v1/projects/demo/audit/verify", api->token[MLO_VIEWER], NULL, NULL);
    assert_http(&reply, 200);
    if (mlo_json_bool(reply.json, "ok", true) == server_knows)
        fail_msg("%s: the server says: %s", what, mlo_buf_str(&reply.body));
    as_owner(api, undo);
    if (verify(api, &out, "") != 0)
        fail_msg("%s, undone: %s", what, mlo_buf_str(&out));
    reply_clear(&reply);
    mlo_buf_clear(&out);
}

static void test_audit_verify__finds_and_names_what_was_tampered_with(void **state)
{
    struct api *api = *state;
    struct mlo_buf out = MLO_BUF_INIT;
    for (int i = 1; i <= 4; i++)
        promote(api, i);
    assert_int_equal(verify(api, &out, ""), 0);
    assert_holds(mlo_buf_str(&out), "4 signed commits say the same");
    as_owner(
        api,
        "CREATE TABLE kept AS SELECT * FROM ledger_commit; CREATE TABLE kept_audit AS SELECT * FROM audit; "
        "CREATE TABLE kept_head AS SELECT * FROM ledger_head; CREATE TABLE kept_key AS SELECT * FROM "
        "signing_key");
#define UNDO                                                                                                 \
    "DELETE FROM ledger_commit; INSERT INTO ledger_commit SELECT * FROM kept; DELETE FROM audit; INSERT "    \
    "INTO audit SELECT "                                                                                     \
    "* FROM kept_audit; DELETE FROM ledger_head; INSERT INTO ledger_head SELECT * FROM kept_head"
#define TAMPER(sql, said, server_knows) tamper(api, sql, sql, said, UNDO, server_knows)
    TAMPER("UPDATE audit SET body = replace(convert_from(body, 'UTF8'), 'nr 2', 'nr 9')::bytea WHERE body "
           "LIKE '%nr 2%'",
           "its content does not hash to its hash: it was changed", true);
    TAMPER("UPDATE ledger_commit SET body = replace(convert_from(body, 'UTF8'), 'nr 2', 'nr 9')::bytea WHERE "
           "n = 2",
           "BROKEN ledger at commit 2: its bytes do not hash to its id: it was changed", true);
    TAMPER("UPDATE ledger_commit SET files = replace(files, 'nr 3', 'nr 1') WHERE n = 3",
           "BROKEN ledger at commit 3: its files are not those that it was signed for", true);
    TAMPER("DELETE FROM ledger_commit WHERE n = 2", "BROKEN ledger at commit 2: it is missing", true);
    /* signed by somebody else: the id is right, the signature is not */
    TAMPER("UPDATE ledger_commit SET body = (SELECT b.body FROM ledger_commit b WHERE b.n = 1), id = '\\x"
           "0000000000000000000000000000000000000001' WHERE n = 4",
           "BROKEN ledger at commit 4", true);
    /* the tail, with all heads put back: only who remembers can tell */
    TAMPER(
        "DELETE FROM ledger_commit WHERE n = 4; UPDATE ledger_head h SET n = 3, audit_seq = c.audit_seq, id "
        "= c.id FROM "
        "ledger_commit c WHERE c.n = 3 AND c.project_id = h.project_id; UPDATE ledger_head SET state = 'x'",
        "BROKEN ledger at commit 4", false);
    assert_int_equal(verify(api, &out, ""), 0);
    mlo_buf_clear(&out);
}

static void test_audit_verify__finds_a_wholesale_rewrite(void **state)
{
    struct api *api = *state;
    struct mlo_buf out = MLO_BUF_INIT;
    struct reply reply = {0};
    for (int i = 1; i <= 2; i++)
        promote(api, i);
    assert_int_equal(verify(api, &out, ""), 0);
    assert_shell(api->dir, &out, "git clone -q http://git:%s@127.0.0.1:%u/v1/projects/demo/ledger.git clone",
                 api->token[MLO_VIEWER], mlo_http_port(api->http));
    assert_int_equal(verify(api, &out, "--clone clone"), 0);
    /* somebody with the database and the server's key writes another history, consistent in itself */
    as_owner(api,
             "DO $$ DECLARE r record; prev bytea := decode(repeat('00', 32), 'hex'); b bytea; BEGIN FOR r IN "
             "SELECT * FROM "
             "audit WHERE project_id = (SELECT id FROM project WHERE name = 'demo') ORDER BY seq LOOP b := "
             "replace(convert_from(r.body, 'UTF8'), 'nr 1', 'nr 7')::bytea; UPDATE audit SET body = b, "
             "prev_hash = prev, "
             "hash = sha256(prev || int8send(r.seq) || b) WHERE project_id = r.project_id AND seq = r.seq; "
             "prev := "
             "sha256(prev || int8send(r.seq) || b); UPDATE audit_head SET hash = prev WHERE project_id = "
             "r.project_id; END "
             "LOOP; END $$; DELETE FROM ledger_commit; DELETE FROM ledger_head");
    api_call(api, &reply, "GET", "/v1/projects/demo/ledger.git/info/refs", api->token[MLO_VIEWER], NULL,
             NULL);
    assert_http(&reply, 200);
    api_call(api, &reply, "GET", "/v1/projects/demo/audit/verify", api->token[MLO_VIEWER], NULL, NULL);
    assert_true(mlo_json_bool(reply.json, "ok", false)); /* alone, the server's data cannot tell */
    assert_int_not_equal(verify(api, &out, ""), 0);
    assert_holds(mlo_buf_str(&out), "the history was rewritten");
    /* who never looked before has the clone of somebody who did */
    assert_shell(api->dir, &out, "rm -r state");
    assert_int_equal(verify(api, &out, ""), 0);
    assert_shell(api->dir, &out, "rm -r state");
    assert_int_not_equal(verify(api, &out, "--clone clone"), 0);
    assert_holds(mlo_buf_str(&out), "which is no commit of the ledger");
    /* a pull does not take it either: the histories have nothing in common */
    assert_int_not_equal(shell(api->dir, &out, "cd clone && git pull -q --ff-only"), 0);
    reply_clear(&reply);
    mlo_buf_clear(&out);
}

static void test_audit_verify__trusts_keys_by_the_one_before(void **state)
{
    struct api *api = *state;
    struct mlo_buf out = MLO_BUF_INIT;
    struct reply reply = {0};
    promote(api, 1);
    assert_int_equal(verify(api, &out, ""), 0);
    usleep(1100 * 1000);
    api_call(api, &reply, "POST", "/v1/keys/rotations", api->token[MLO_ADMIN], "{}", NULL);
    assert_http(&reply, 201);
    promote(api, 2);
    assert_int_equal(verify(api, &out, ""), 0);
    /* a key put in by somebody who has the database alone */
    as_owner(api, "INSERT INTO signing_key (fingerprint, public_key, comment, valid_from, created_by) VALUES "
                  "('SHA256:' || "
                  "repeat('A', 43), decode(repeat('07', 32), 'hex'), 'x', now(), 'x')");
    assert_int_not_equal(verify(api, &out, ""), 0);
    assert_holds(mlo_buf_str(&out), "no known key vouches for");
    assert_holds(mlo_buf_str(&out), "--accept-key SHA256:AAAA");
    as_owner(api, "UPDATE signing_key SET endorser = 1, endorsement = (SELECT endorsement FROM signing_key "
                  "WHERE id = 2) "
                  "WHERE id = 3");
    assert_int_not_equal(verify(api, &out, ""), 0);
    assert_holds(mlo_buf_str(&out), "is not signed by");
    reply_clear(&reply);
    mlo_buf_clear(&out);
}

/* A clone of the ledger as `name`; how many requests it took. */
static int64_t clone_requests(struct api *api, const char *name)
{
    struct mlo_buf out = MLO_BUF_INIT;
    int64_t count = 0;
    assert_shell(
        api->dir, &out,
        "GIT_CURL_VERBOSE=1 git -c http.extraHeader='Authorization: Bearer %s' clone "
        "http://127.0.0.1:%u/v1/projects/demo/ledger.git %s > %s.log 2>&1 || { tail -5 %s.log; exit 1; }; "
        "git -C %s fsck --strict --full > %s.fsck 2>&1 || { cat %s.fsck; exit 1; }",
        api->token[MLO_VIEWER], mlo_http_port(api->http), name, name, name, name, name, name);
    assert_shell(api->dir, &out, "grep -c 'Send header: GET' %s.log", name);
    out.data[strcspn(out.data, "\n")] = '\0';
    assert_true(mlo_str_to_i64(out.data, &count));
    mlo_buf_clear(&out);
    return count;
}

struct cloner {
    struct api *api;
    int clones;
    atomic_bool stop;
};

static void *keep_cloning(void *arg)
{
    struct cloner *c = arg;
    do {
        char name[32];
        snprintf(name, sizeof name, "beside%d", c->clones++);
        clone_requests(c->api, name);
    } while (!atomic_load(&c->stop));
    return NULL;
}

/* Stock git clones before there are packs, while they are made, beside what they replace, and behind that. */
static void test_ledger__packs_make_a_clone_cheap(void **state)
{
    struct api *api = *state;
    struct pg_fixture *f = api->pg;
    struct mlo_buf out = MLO_BUF_INIT, ids = MLO_BUF_INIT;
    struct cloner cloner = {.api = api};
    pthread_t thread;
    char *path = mlo_ledger_repository(api->ledger, "demo");
    ledger_events(f, api->project, 0, 20);
    assert_true(clone_requests(api, "few") > 40);
    /* who asks does not wait for packs, though there is one to make now; who writes makes it */
    ledger_events(f, api->project, 20, 40);
    assert_true(clone_requests(api, "waiting") > 120);
    assert_shell(path, &out, "ls objects/pack | wc -l");
    assert_string_equal(mlo_buf_str(&out), "0\n");
    assert_int_equal(pthread_create(&thread, NULL, keep_cloning, &cloner), 0);
    for (int i = 60; i < 300; i += 20) {
        ledger_events(f, api->project, i, 20);
        assert_mlo_ok(mlo_ledger_sync(api->ledger, f->conn, api->project, &f->err), &f->err);
    }
    atomic_store(&cloner.stop, true);
    pthread_join(thread, NULL);
    int64_t loose = clone_requests(api, "loose");
    assert_shell(path, &ids, "git rev-list main && git rev-list --objects main | sort");
    /* an hour later */
    assert_shell(path, &out, "sed -i 's/\"since\":[0-9]*/\"since\":1/g' packs && cat packs");
    assert_mlo_ok(mlo_ledger_sync(api->ledger, f->conn, api->project, &f->err), &f->err);
    int64_t packed = clone_requests(api, "packed");
    print_message("300 commits: %lld requests, with packs %lld\n", (long long)loose, (long long)packed);
    assert_true(loose > 900);
    assert_true(packed < loose / 8);
    assert_shell(api->dir, &out, "cd packed && git rev-list main && git rev-list --objects main | sort");
    assert_string_equal(mlo_buf_str(&out), mlo_buf_str(&ids));
    assert_shell(path, &out, "ls objects/pack | grep -c '[.]pack$'");
    assert_string_equal(mlo_buf_str(&out), "2\n"); /* of 256 and of 32 */
    assert_shell(path, &out, "git fsck --strict --full");
    /* what comes later is pulled on top */
    ledger_events(f, api->project, 300, 40);
    assert_shell(
        api->dir, &out,
        "cd few && git -c http.extraHeader='Authorization: Bearer %s' pull -q && git rev-list --count main",
        api->token[MLO_VIEWER]);
    assert_string_equal(mlo_buf_str(&out), "340\n");
    mlo_buf_clear(&out);
    mlo_buf_clear(&ids);
    free(path);
}

/* Another server's part of what is written, while this one answers. */
static void write_elsewhere(struct api *api, const char *step)
{
    struct mlo_error err = {0};
    struct mlo_buf out = MLO_BUF_INIT;
    struct mlo_ledger *ledger;
    char *dir;
    if (strcmp(step, "after the branch") != 0)
        return;
    api->on_ledger_step = NULL;
    assert_mlo_ok(mlo_fs_tempdir(api->dir, "other-", &dir, &err), &err);
    const struct mlo_ledger_options options = {.db = api->pg->server, .dir = dir};
    assert_shell(api->dir, &out, "cp -p ledger/ledger.key %s/", dir);
    assert_mlo_ok(mlo_ledger_open(&options, &ledger, &err), &err);
    ledger_events(api->pg, api->project, 1, 1);
    assert_mlo_ok(mlo_ledger_sync(ledger, api->pg->conn, api->project, &err), &err);
    mlo_ledger_close(ledger);
    mlo_buf_clear(&out);
    free(dir);
}

static void assert_cloned(struct api *api, const char *name, const char *commits)
{
    struct mlo_buf out = MLO_BUF_INIT;
    clone_requests(api, name);
    assert_shell(api->dir, &out, "git -C %s rev-list --count main", name);
    assert_string_equal(mlo_buf_str(&out), commits);
    mlo_buf_clear(&out);
}

/* Else a clone asks for a commit whose objects come later. */
static void test_ledger__names_a_commit_when_its_objects_are_there(void **state)
{
    struct api *api = *state;
    ledger_events(api->pg, api->project, 0, 1);
    api->on_ledger_step = write_elsewhere;
    assert_cloned(api, "one", "1\n");
    assert_cloned(api, "two", "2\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_ledger__stock_git_clones_and_checks_it),
        API_TEST(test_ledger__packs_make_a_clone_cheap),
        API_TEST(test_ledger__names_a_commit_when_its_objects_are_there),
        API_TEST(test_audit_verify__finds_and_names_what_was_tampered_with),
        API_TEST(test_audit_verify__finds_a_wholesale_rewrite),
        API_TEST(test_audit_verify__trusts_keys_by_the_one_before),
    };
    API_MAIN(tests);
}
