/* The server itself is killed (SIGKILL) at every step that writes, while clients talk HTTP to it: uploads
 * whole and in pieces, versions, promotions, comments, deletions, garbage collection, the ledger's writer and
 * the sender of webhooks. Or its connections to PostgreSQL are ended there, or PostgreSQL is (its immediate
 * shutdown). It is started again and the clients repeat what was not answered.
 *
 * After each: what was acknowledged is there, nothing happened twice that must not, every event of the audit
 * log reached the webhook and every promotion the ledger, and `mlopt audit verify` and `mlopt fsck --bytes`
 * find nothing. A run takes some of the steps, from a random first one that is printed (MLOPT_FAULT_SEED sets
 * it); MLOPT_FAULT_ALL=1 takes all, MLOPT_FAULT_ALL=2/3 the second third (each step is in one of them). An
 * argument chooses among the three faults ("*server*", "*cut*", "*postgresql*"). So the parts can be run
 * beside each other. */
#include "tests/fault/server_fixture.h"
#include "tests/fault_parts.h"

/* OCCURRENCES: of one step, so that a poll of the background is not counted forever. */
enum { KILLS = 6, CUTS = 2, DATABASE_KILLS = 2, OCCURRENCES = 3, NEARBY = 8 };

#define DEMO "/v1/projects/demo"

/* What one round of the traffic made, and how. */
struct round {
    char tag[32];
    int64_t generation; /* before the promotion */
};

static void content(const struct round *r, const char *kind, char out[96], char digest[MLO_DIGEST_TEXT_SIZE])
{
    struct mlo_digest d;
    snprintf(out, 96, "%s of %s", kind, r->tag);
    mlo_digest_of(out, strlen(out), &d);
    mlo_digest_text(&d, digest);
}

/* And its blob's path. */
static void content_at(const struct round *r, const char *kind, char text[96], char path[256])
{
    char digest[MLO_DIGEST_TEXT_SIZE];
    content(r, kind, text, digest);
    snprintf(path, 256, DEMO "/blobs/%s", digest);
}

/* --- the traffic ------------------------------------------------------------------------------------- */

static void put_whole(struct service *s, const struct round *r, const char *kind)
{
    struct reply a = {0};
    char text[96], path[256];
    content_at(r, kind, text, path);
    ask(s, &a, "PUT", path, text, NULL);
    assert_answer(s, &a, a.status == 201 || (a.status == 200 && a.lost));
    reply_clear(&a);
}

/* As api/cli/client/upload.c: asks where it stands after whatever happened. */
static void put_pieces(struct service *s, const struct round *r)
{
    struct reply a = {0};
    char text[96], digest[MLO_DIGEST_TEXT_SIZE], path[256], whole[256], range[80];
    content(r, "pieces", text, digest);
    size_t size = strlen(text), offset = 0;
    snprintf(whole, sizeof whole, DEMO "/blobs/%s", digest);
    ask(s, &a, "POST", DEMO "/uploads", "{}", NULL);
    assert_answer(s, &a, a.status == 201);
    snprintf(path, sizeof path, DEMO "/uploads/%s", mlo_json_str(a.json, "id", "?"));
    while (offset < size) {
        size_t n = MLO_MIN(size - offset, (size_t)10);
        char piece[16];
        snprintf(piece, sizeof piece, "%.*s", (int)n, text + offset);
        snprintf(range, sizeof range, "Content-Range: bytes %zu-%zu/%zu", offset, offset + n - 1, size);
        ask(s, &a, "PATCH", path, piece, range);
        assert_answer(s, &a, a.status == 202 || (a.lost && (a.status == 416 || a.status == 409)));
        ask(s, &a, "GET", path, NULL, NULL);
        assert_answer(s, &a, a.status == 200);
        offset = (size_t)mlo_json_i64(a.json, "offset", 0);
    }
    snprintf(path + strlen(path), sizeof path - strlen(path), "?digest=%s", digest);
    ask(s, &a, "PUT", path, NULL, NULL);
    if (a.status == 404 && a.lost) /* it was finished, and nobody said so: then the bytes are there */
        ask(s, &a, "HEAD", whole, NULL, NULL);
    assert_answer(s, &a, a.status == 201 || a.status == 200);
    reply_clear(&a);
}

static json_t *file_of(const struct round *r, const char *kind, const char *role)
{
    char text[96], digest[MLO_DIGEST_TEXT_SIZE];
    content(r, kind, text, digest);
    return json_pack("{s:s, s:s, s:s}", "role", role, "name", kind, "digest", digest);
}

static void add_version(struct service *s, const char *model, json_t *files)
{
    struct reply a = {0};
    char path[256];
    snprintf(path, sizeof path, DEMO "/models/%s/versions", model);
    ask_json(s, &a, path, json_pack("{s:o, s:s}", "files", files, "description", ""), NULL);
    assert_answer(s, &a, a.status == 201);
    reply_clear(&a);
}

static json_t *production(struct service *s, struct reply *a)
{
    ask(s, a, "GET", DEMO "/models/staged/stages/production", NULL, NULL);
    assert_answer(s, a, a->status == 200);
    return a->json;
}

/* One that was done is answered as it was then, not with the 412 that its If-Match has by now. */
static void promote(struct service *s, struct round *r)
{
    struct reply a = {0};
    char match[64];
    json_t *stage = production(s, &a);
    r->generation = mlo_json_i64(stage, "generation", 0);
    int64_t version = mlo_json_i64(json_object_get(stage, "release"), "version", 0) == 1 ? 2 : 1;
    snprintf(match, sizeof match, "If-Match: \"%lld\"", (long long)r->generation);
    ask_json(s, &a, DEMO "/models/staged/promotions",
             json_pack("{s:s, s:I, s:{s:s}, s:s}", "stage", "production", "version", (json_int_t)version,
                       "variants", "any", "source", "reason", r->tag),
             match);
    assert_answer(s, &a, a.status == 201);
    stage = production(s, &a);
    assert_answer(s, &a,
                  mlo_json_i64(stage, "generation", 0) == r->generation + 1 &&
                      mlo_json_i64(json_object_get(stage, "release"), "version", 0) == version);
    reply_clear(&a);
}

static void comment(struct service *s, const struct round *r)
{
    struct reply a = {0};
    char path[256];
    snprintf(path, sizeof path, DEMO "/models/%s/versions/1/comments", r->tag);
    ask_json(s, &a, path, json_pack("{s:s}", "text", r->tag), NULL);
    assert_answer(s, &a, a.status == 201);
    reply_clear(&a);
}

/* A version goes for good, and with it bytes that only it held. */
static void delete_and_collect(struct service *s, struct round *r)
{
    struct reply a = {0};
    char model[64], cursor[MLO_DIGEST_TEXT_SIZE] = "";
    snprintf(model, sizeof model, "old-%s", r->tag);
    ask_json(s, &a, DEMO "/deletions",
             json_pack("{s:s, s:i, s:s, s:i}", "model", model, "version", 1, "reason", r->tag, "grace_s", 0),
             NULL);
    assert_answer(s, &a, a.status == 201);
    do {
        ask_json(s, &a, "/v1/gc", json_pack("{s:i, s:s}", "grace_s", 0, "cursor", cursor), NULL);
        assert_answer(s, &a, a.status == 200);
        snprintf(cursor, sizeof cursor, "%s", mlo_json_str(a.json, "next", ""));
    } while (mlo_json_bool(a.json, "more", false));
    reply_clear(&a);
}

/* Until the ledger and the webhooks have done what the traffic left to them. */
static void settle(struct service *s)
{
    static const char LEFT[] =
        "SELECT (SELECT count(*) FROM mlopt.ledger_event) - (SELECT count(*) FROM mlopt.ledger_commit) + "
        "(SELECT count(*) FROM mlopt.webhook_delivery WHERE state = 'pending')";
    uint64_t begin = mlo_clock_ns(), ended = begin;
    service_heal(s);
    while (service_number(s, LEFT)) {
        uint64_t now = mlo_clock_ns();
        if (now - begin > PATIENCE_S * 1000000000ull)
            service_fail(s, "the ledger or a webhook does not catch up");
        if (now - ended > 3000000000ull && atomic_load(&s->plan->struck)) {
            end_leases(s); /* of a sender that lost its connection; at least once is what is promised */
            ended = now;
        }
        mlo_clock_sleep_ms(30);
        service_heal(s);
    }
}

static void traffic(struct service *s, struct round *r)
{
    char old[64];
    snprintf(old, sizeof old, "old-%s", r->tag);
    put_whole(s, r, "whole");
    put_pieces(s, r);
    add_version(s, r->tag, json_pack("[o, o]", file_of(r, "whole", "model"), file_of(r, "pieces", "data")));
    put_whole(s, r, "old");
    add_version(s, old, json_pack("[o]", file_of(r, "old", "model")));
    promote(s, r);
    comment(s, r);
    delete_and_collect(s, r);
    settle(s);
}

/* --- what holds after it ------------------------------------------------------------------------------ */

static void check_bytes(struct service *s, const struct round *r, const char *kind)
{
    struct reply a = {0};
    char text[96], path[256];
    content_at(r, kind, text, path);
    ask(s, &a, "GET", path, NULL, NULL);
    assert_answer(s, &a, a.status == 200 && strcmp(mlo_buf_str(&a.body), text) == 0);
    reply_clear(&a);
}

static void check_gone(struct service *s, const struct round *r)
{
    struct reply a = {0};
    char text[96], digest[MLO_DIGEST_TEXT_SIZE], path[256];
    const char *hex = digest + strlen("sha256:");
    content(r, "old", text, digest);
    snprintf(path, sizeof path, DEMO "/blobs/%s", digest);
    ask(s, &a, "GET", path, NULL, NULL);
    assert_answer(s, &a, a.status == 404);
    snprintf(path, sizeof path, "%s/blobs/sha256/%.2s/%.2s/%s", s->dir, hex, hex + 2, hex);
    assert_false(mlo_fs_exists(path));
    reply_clear(&a);
}

static size_t count_items(struct service *s, const struct round *r, const char *what)
{
    struct reply a = {0};
    char path[256];
    snprintf(path, sizeof path, DEMO "/models/%s/%s", r->tag, what);
    ask(s, &a, "GET", path, NULL, NULL);
    assert_answer(s, &a, a.status == 200);
    size_t n = json_array_size(json_object_get(a.json, "items"));
    reply_clear(&a);
    return n;
}

/* The promotion, told at least once. */
static bool was_told(const struct round *r)
{
    bool told = false;
    pthread_mutex_lock(&receiver.lock);
    for (size_t i = 0; i < receiver.count; i++)
        told = told || strstr(receiver.calls[i].body, r->tag);
    receiver.count = 0;
    pthread_mutex_unlock(&receiver.lock);
    return told;
}

static void check(struct service *s, const struct round *r)
{
    struct reply a = {0};
    static const char *const verify[] = {"audit", "demo", "verify", NULL};
    static const char *const fsck[] = {"fsck", "--bytes", NULL};
    check_bytes(s, r, "whole");
    check_bytes(s, r, "pieces");
    check_gone(s, r);
    assert_int_equal(count_items(s, r, "versions"), 1);
    assert_int_equal(count_items(s, r, "versions/1/comments"), 1);
    assert_int_equal(mlo_json_i64(production(s, &a), "generation", 0), r->generation + 1);
    reply_clear(&a);
    if (!was_told(r))
        service_fail(s, "no webhook tells of the promotion");
    run_mlopt(s, verify);
    run_mlopt(s, fsck);
}

/* --- campaigns ---------------------------------------------------------------------------------------- */

static void arm(struct service *s, enum fault_kind kind, const char *at, long occurrence)
{
    struct fault_plan *p = s->plan;
    p->kind = kind;
    snprintf(p->at, sizeof p->at, "%s", at);
    p->occurrence = occurrence;
    p->database = mlo_embedded_pid(s->f->pg);
    atomic_store(&p->struck, 0);
    atomic_store(&p->count, 0);
    s->database_back = false;
    atomic_store(&p->armed, 1);
}

/* From here on nothing strikes, and what struck at the last moment has been healed: a step of the background
 * may come when the traffic is over. */
static void disarm(struct service *s)
{
    atomic_store(&s->plan->armed, 0);
    do {
        service_heal(s);
        mlo_clock_sleep_ms(1);
    } while (atomic_load(&s->plan->going));
    service_heal(s);
}

/* Whether the fault struck: a step of the background may not come in one round. */
static bool one(struct service *s, const char *name, size_t number, enum fault_kind kind, const char *at,
                long occurrence)
{
    struct round r = {0};
    snprintf(r.tag, sizeof r.tag, "%s-%zu", name, number);
    arm(s, kind, at, occurrence);
    traffic(s, &r);
    disarm(s);
    check(s, &r);
    return atomic_load(&s->plan->struck) != 0;
}

struct target {
    char text[FAULT_STEP_TEXT];
    long occurrence;
};

static int by_text(const void *a, const void *b)
{
    const struct target *one = a, *two = b;
    int order = strcmp(one->text, two->text);
    return order ? order : (one->occurrence > two->occurrence) - (one->occurrence < two->occurrence);
}

/* Which of the parts it is in, from 0: by what it is, since processes that take a part each have lists of
 * their own, whose numbers differ by the steps that the background happened to make. */
static size_t part_of(const struct target *t, size_t parts)
{
    char name[FAULT_STEP_TEXT + 24];
    struct mlo_digest digest;
    size_t number = 0;
    snprintf(name, sizeof name, "%s %ld", t->text, t->occurrence);
    mlo_digest_of(name, strlen(name), &digest);
    for (size_t i = 0; i < 4; i++)
        number = number << 8 | digest.bytes[i];
    return number % parts;
}

/* The steps of the round before that are in this part of `parts` (from 0), in an order that does not depend
 * on it; those of PostgreSQL only, where the fault is its end. Yours. */
static struct target *targets_of(const struct fault_plan *p, enum fault_kind kind, size_t part, size_t parts,
                                 size_t *count)
{
    struct target *all = calloc(FAULT_STEPS_MAX * OCCURRENCES, sizeof *all);
    size_t n = 0, steps = atomic_load(&p->count);
    assert_true(steps < FAULT_STEPS_MAX);
    for (size_t i = 0; i < steps; i++)
        for (long o = 0; o < MLO_MIN(p->steps[i].count, (long)OCCURRENCES); o++) {
            if (kind != FAULT_KILL && !strstr(p->steps[i].text, "PQ"))
                continue;
            snprintf(all[n].text, sizeof all[n].text, "%s", p->steps[i].text);
            all[n].occurrence = o;
            n += part_of(&all[n], parts) == part;
        }
    qsort(all, n, sizeof *all, by_text);
    *count = n;
    return all;
}

static void open_demo(struct service *s)
{
    struct reply a = {0};
    struct round first = {.tag = "first"}, second = {.tag = "second"};
    char url[64];
    ask(s, &a, "POST", "/v1/projects", "{\"name\":\"demo\"}", NULL);
    assert_answer(s, &a, a.status == 201);
    put_whole(s, &first, "staged");
    put_whole(s, &second, "staged");
    add_version(s, "staged", json_pack("[o]", file_of(&first, "staged", "model")));
    add_version(s, "staged", json_pack("[o]", file_of(&second, "staged", "model")));
    snprintf(url, sizeof url, "http://127.0.0.1:%u/hook", receiver.port);
    ask_json(s, &a, DEMO "/webhooks", json_pack("{s:s, s:[s]}", "url", url, "events", "stage.promote"), NULL);
    assert_answer(s, &a, a.status == 201);
    reply_clear(&a);
}

static void campaign(struct pg_fixture *f, const char *name, enum fault_kind kind, size_t some)
{
    struct service s;
    int64_t seed = fault_seed();
    size_t count, part, parts, missed = 0, done = 0;
    bool all = fault_takes_all(&part, &parts);
    service_open(&s, f);
    open_demo(&s);
    one(&s, name, 0, FAULT_NONE, "", 0); /* passes all steps: which are there? */
    struct target *targets = targets_of(s.plan, kind, part - 1, parts, &count);
    assert_true(count * parts > 60);
    double stride = all ? 1 : (double)count / (double)MLO_MIN(some, count);
    double first = all ? 0 : (double)(seed % 1000) / 1000 * stride;
    print_message("%s: %zu steps, every %.1f from %.1f (MLOPT_FAULT_SEED=%lld)\n", name, count, stride, first,
                  (long long)seed);
    for (double at = first; at < (double)count; at += stride) {
        bool struck = false;
        /* for a step that does not come this time another one nearby; all of them come by themselves */
        for (size_t next = 0; !struck && next < (all ? 1 : NEARBY); next++) {
            size_t number = ((size_t)at + next * OCCURRENCES) % count;
            const struct target *t = &targets[number];
            struck = one(&s, name, number + 1, kind, t->text, t->occurrence);
            if (!struck)
                print_message("%s: not met: %s, %ld\n", name, t->text, t->occurrence);
        }
        missed += !struck;
        done++;
    }
    print_message("%s: %zu struck, %zu not met, the server was started %d times\n", name, done - missed,
                  missed, s.starts);
    assert_true(missed * 4 <= done + 3);
    free(targets);
    service_close(&s);
}

static void test_kill__the_server_at_each_step(void **state)
{
    campaign(*state, "kill", FAULT_KILL, KILLS);
}

static void test_cut__its_connections_at_each_step(void **state)
{
    campaign(*state, "cut", FAULT_CUT, CUTS);
}

static void test_kill__postgresql_at_each_step(void **state)
{
    campaign(*state, "database", FAULT_DATABASE, DATABASE_KILLS);
}

#define T(name) cmocka_unit_test_setup_teardown(name, pg_fixture_setup, pg_fixture_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(test_kill__the_server_at_each_step),
        T(test_cut__its_connections_at_each_step),
        T(test_kill__postgresql_at_each_step),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    int failed = cmocka_run_group_tests(tests, webhook_group_start, webhook_group_stop);
    curl_global_cleanup();
    return failed;
}
