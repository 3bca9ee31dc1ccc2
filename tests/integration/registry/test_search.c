/* Searching versions: as a brute force over random facts finds them, page by page, also while versions are
 * added; and by an index. */
#include <math.h>
#include <string.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

enum { VERSIONS = 130, MODELS = 7, QUERIES = 140 };

/* What one version says. NULL and NAN: nothing. */
struct said {
    int64_t id, number;
    int model;
    const char *team, *nightly, *opt, *opt_text, *commit, *dirty;
    double opt_number, lr, top1, loss;
};

static uint64_t random_state;

static unsigned roll(unsigned sides)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % sides;
}

static int64_t project(struct pg_fixture *f, const char *name)
{
    int64_t id;
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, name, &id, &f->err), &f->err);
    return id;
}

static const char *const TEAMS[] = {"audio", "vision", "vision/lab", "a \"b\", c"};
static const char *const COMMITS[] = {"00aa0123456789abcdef0123456789abcdef0123",
                                      "00ab0123456789abcdef0123456789abcdef0123",
                                      "ff000123456789abcdef0123456789abcdef0123"};
static const double RATES[] = {0.1, 0.01, 1e-3};

static void set(json_t *facts, const char *member, const char *name, json_t *value)
{
    if (!json_object_get(facts, member))
        json_object_set_new(facts, member, json_object());
    json_object_set_new(json_object_get(facts, member), name, value);
}

/* Adds a version with random facts; says what they are. */
static struct said add(struct pg_fixture *f, int64_t project_id)
{
    static int content;
    struct said s = {.opt_number = NAN, .lr = NAN, .top1 = NAN, .loss = NAN, .model = (int)roll(MODELS)};
    json_t *facts = json_object();
    char text[32];
    if (roll(10) > 1)
        set(facts, "tags", "team", json_string(s.team = TEAMS[roll(4)]));
    if (roll(20) == 0)
        set(facts, "tags", "nightly", json_string(s.nightly = ""));
    if (roll(4) > 0) {
        set(facts, "params", "opt", json_string(s.opt = roll(2) ? "sgd" : "adam"));
    } else if (roll(2)) {
        s.opt_number = roll(3);
        set(facts, "params", "opt", json_integer((json_int_t)s.opt_number));
        s.opt = s.opt_number == 0 ? "0" : s.opt_number == 1 ? "1" : "2";
    }
    if (roll(10) > 0)
        set(facts, "params", "lr", json_real(s.lr = RATES[roll(3)]));
    if (roll(10) > 0)
        set(facts, "metrics", "val/top1", json_real(s.top1 = roll(40) / 40.0));
    if (roll(10) > 3)
        set(facts, "metrics", "loss", json_real(s.loss = -5.0 + roll(1000) * 1e-3));
    if (roll(3)) {
        s.commit = COMMITS[roll(3)];
        s.dirty = roll(2) ? "true" : "false";
        json_object_set_new(facts, "code",
                            json_pack("{s:s, s:b}", "commit", s.commit, "dirty", s.dirty[0] == 't'));
    }
    struct mlo_manifest_blob b = {.role = "model", .name = "m"};
    struct mlo_version_info info;
    int64_t model;
    snprintf(text, sizeof text, "bytes %d", ++content);
    mlo_digest_of(text, strlen(text), &b.digest);
    assert_mlo_ok(mlo_blob_record(f->conn, &root, project_id, &b.digest, 1, &f->err), &f->err);
    snprintf(text, sizeof text, "net%d", s.model);
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, project_id, text, &model, &f->err), &f->err);
    const struct mlo_version_content c = {.facts = facts, .blobs = &b, .count = 1};
    assert_mlo_ok(mlo_version_add(f->conn, &root, model, &c, &info, &f->err), &f->err);
    json_decref(facts);
    s.id = info.id;
    s.number = info.number;
    return s;
}

/* --- the brute force ---------------------------------------------------------------------------- */

enum { EQ, NE, LE, LT, GE, GT, PREFIX, HAS, HAS_NOT };
static const char *const OPS[] = {"=", "!=", "<=", "<", ">=", ">", "~"};

static const char *text_of(const struct said *s, const char *key)
{
    static char model[MODELS][8];
    if (strcmp(key, "model") == 0) {
        snprintf(model[s->model], sizeof model[0], "net%d", s->model);
        return model[s->model];
    }
    return strcmp(key, "tag.team") == 0      ? s->team
           : strcmp(key, "tag.nightly") == 0 ? s->nightly
           : strcmp(key, "param.opt") == 0   ? s->opt
           : strcmp(key, "commit") == 0      ? s->commit
           : strcmp(key, "dirty") == 0       ? s->dirty
                                             : NULL;
}

static double number_of(const struct said *s, const char *key)
{
    return strcmp(key, "metric.val/top1") == 0 ? s->top1
           : strcmp(key, "metric.loss") == 0   ? s->loss
           : strcmp(key, "param.lr") == 0      ? s->lr
           : strcmp(key, "param.opt") == 0     ? s->opt_number
           : strcmp(key, "version") == 0       ? (double)s->number
                                               : NAN;
}

struct condition {
    const char *key, *text; /* text NULL: by number */
    double number;
    int op;
};

static bool fits(const struct said *s, const struct condition *c)
{
    const char *text = text_of(s, c->key);
    double number = number_of(s, c->key);
    bool has = text || !isnan(number);
    switch (c->op) {
    case HAS:
        return has;
    case HAS_NOT:
        return !has;
    case EQ:
        return c->text ? text && strcmp(text, c->text) == 0 : number == c->number;
    case NE:
        return c->text ? !text || strcmp(text, c->text) != 0 : !(number == c->number);
    case LE:
        return number <= c->number;
    case LT:
        return number < c->number;
    case GE:
        return number >= c->number;
    case GT:
        return number > c->number;
    default:
        return text && strncmp(text, c->text, strlen(c->text)) == 0;
    }
}

static struct condition random_condition(void)
{
    static const char *const texts[] = {"tag.team", "tag.nightly", "param.opt", "commit", "dirty", "model"};
    static const char *const numbers[] = {"metric.val/top1", "metric.loss", "param.lr", "param.opt",
                                          "version"};
    struct condition c = {.key = texts[roll(6)]};
    if (roll(6) == 0) {
        c.op = roll(2) ? HAS : HAS_NOT;
        return c;
    }
    if (roll(2)) {
        static const int ops[] = {EQ, EQ, NE, PREFIX};
        c.op = ops[roll(4)];
        c.text = strcmp(c.key, "tag.team") == 0      ? roll(8) ? TEAMS[roll(4)] : "v"
                 : strcmp(c.key, "tag.nightly") == 0 ? ""
                 : strcmp(c.key, "param.opt") == 0   ? roll(2)   ? "sgd"
                                                       : roll(2) ? "1"
                                                                 : "adam"
                 : strcmp(c.key, "commit") == 0      ? COMMITS[roll(3)]
                 : strcmp(c.key, "dirty") == 0       ? "true"
                                                     : "net3";
        if (strcmp(c.key, "commit") == 0 && c.op == PREFIX)
            c.text = "00a";
        return c;
    }
    c.key = numbers[roll(5)];
    c.op = (int)roll(6);
    c.number = strcmp(c.key, "metric.val/top1") == 0 ? roll(41) / 40.0
               : strcmp(c.key, "metric.loss") == 0   ? -5.0 + roll(1000) * 1e-3
               : strcmp(c.key, "param.lr") == 0      ? RATES[roll(3)]
               : strcmp(c.key, "param.opt") == 0     ? roll(3)
                                                     : roll(30);
    return c;
}

static void write_condition(const struct condition *c, struct mlo_buf *out)
{
    if (c->op == HAS || c->op == HAS_NOT) {
        mlo_buf_printf(out, "%s%s", c->op == HAS_NOT ? "!" : "", c->key);
        return;
    }
    mlo_buf_printf(out, "%s %s ", c->key, OPS[c->op]);
    if (!c->text) {
        mlo_buf_printf(out, "%.17g", c->number);
        return;
    }
    mlo_buf_putc(out, '"');
    for (const char *t = c->text; *t; t++)
        mlo_buf_printf(out, "%s%c", *t == '"' || *t == '\\' ? "\\" : "", *t);
    mlo_buf_putc(out, '"');
}

static const struct order {
    const char *text, *key; /* NULL: by id */
    bool up;
} ORDERS[] = {{NULL, NULL, false},
              {"created:asc", NULL, true},
              {"metric.val/top1", "metric.val/top1", false},
              {"metric.val/top1:asc", "metric.val/top1", true},
              {"metric.loss:asc", "metric.loss", true},
              {"param.lr:desc", "param.lr", false},
              {"version", "version", false}};

static const struct order *sorting;

static int by_order(const void *a, const void *b)
{
    const struct said *x = a, *y = b;
    int sign = sorting->up ? 1 : -1;
    double n = sorting->key ? number_of(x, sorting->key) : 0,
           m = sorting->key ? number_of(y, sorting->key) : 0;
    return n < m ? -sign : n > m ? sign : x->id < y->id ? -sign : x->id > y->id ? sign : 0;
}

static size_t brute_force(const struct said *all, size_t count, const struct condition *c, size_t conditions,
                          const struct order *order, struct said *out)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        bool ok = !order->key || !isnan(number_of(&all[i], order->key));
        for (size_t j = 0; j < conditions; j++)
            ok = ok && fits(&all[i], &c[j]);
        if (ok)
            out[n++] = all[i];
    }
    sorting = order;
    qsort(out, n, sizeof *out, by_order);
    return n;
}

/* --- searching ----------------------------------------------------------------------------------- */

/* The next page's ids, appended; false behind the last. */
static bool next_page(struct pg_fixture *f, const struct mlo_search *search, int64_t limit, char cursor[128],
                      int64_t *ids, size_t *count)
{
    struct mlo_page page = {.cursor = cursor, .limit = limit};
    json_t *list, *item;
    size_t i;
    enum mlo_status status = mlo_version_search(f->conn, search, &page, &list, &f->err);
    if (status != MLO_OK)
        fail_msg("'%s' by '%s': %s at %s", search->filter, search->order ? search->order : "", f->err.message,
                 f->err.where);
    assert_true(json_array_size(json_object_get(list, "items")) <= (size_t)limit);
    json_array_foreach(json_object_get(list, "items"), i, item)
    {
        assert_true(*count < 2 * VERSIONS);
        ids[(*count)++] = mlo_json_i64(item, "id", 0);
    }
    const char *next = mlo_json_str(list, "next", NULL);
    snprintf(cursor, 128, "%s", next ? next : "");
    json_decref(list);
    return next != NULL;
}

static void test_search__finds_what_a_brute_force_finds(void **state)
{
    static const int64_t looks[] = {0, 9, 60};
    struct pg_fixture *f = *state;
    static struct said all[VERSIONS], expected[VERSIONS];
    static int64_t ids[2 * VERSIONS];
    int64_t p = project(f, "demo"), other = project(f, "other");
    size_t found = 0, pages = 0;
    random_state = 1;
    for (int i = 0; i < VERSIONS; i++) {
        all[i] = add(f, p);
        if (i % 8 == 0)
            add(f, other); /* which nobody who searches demo may see */
    }
    for (int q = 0; q < QUERIES; q++) {
        struct condition c[4];
        size_t conditions = roll(4), count = 0;
        struct mlo_buf filter = MLO_BUF_INIT;
        const struct order *order = &ORDERS[roll(MLO_COUNT(ORDERS))];
        char cursor[128] = "";
        for (size_t i = 0; i < conditions; i++) {
            c[i] = random_condition();
            if (i)
                mlo_buf_puts(&filter, roll(2) ? " and " : ",");
            write_condition(&c[i], &filter);
        }
        struct mlo_search search = {
            .project_id = p, .filter = mlo_buf_str(&filter), .order = order->text, .look = looks[roll(3)]};
        int64_t limit = 1 + roll(60);
        do
            pages++;
        while (next_page(f, &search, limit, cursor, ids, &count));
        size_t wanted = brute_force(all, VERSIONS, c, conditions, order, expected);
        bool same = count == wanted;
        for (size_t i = 0; same && i < count; i++)
            same = ids[i] == expected[i].id;
        if (!same)
            fail_msg(
                "'%s' by '%s', %lld a page, looking at %lld: %zu found, %zu expected, or in another order",
                search.filter, order->text ? order->text : "", (long long)limit, (long long)search.look,
                count, wanted);
        found += count;
        mlo_buf_clear(&filter);
    }
    assert_true(found > 20 * QUERIES && pages > 3 * QUERIES); /* it was no search for nothing */
}

static void test_search__pages_lose_and_repeat_nothing(void **state)
{
    struct pg_fixture *f = *state;
    static struct said all[VERSIONS], expected[VERSIONS];
    static int64_t ids[2 * VERSIONS];
    int64_t p = project(f, "demo");
    size_t old = 60;
    random_state = 2;
    for (size_t i = 0; i < old; i++)
        all[i] = add(f, p);
    for (size_t o = 0; o < MLO_COUNT(ORDERS); o++) {
        const struct condition c = {.key = "param.lr", .op = GE, .number = 0.01};
        struct mlo_search search = {
            .project_id = p, .filter = "param.lr >= 0.01", .order = ORDERS[o].text, .look = o % 2 ? 20 : 0};
        char cursor[128] = "";
        size_t count = 0, now = old;
        bool more = true;
        while (more) {
            more = next_page(f, &search, 7, cursor, ids, &count);
            if (now < VERSIONS && now < old + 12)
                all[now++] = add(f, p);
        }
        /* those that were there at first, each once and in order; newer ones at most once */
        size_t wanted = brute_force(all, old, &c, 1, &ORDERS[o], expected), at = 0;
        for (size_t i = 0; i < count; i++) {
            for (size_t j = 0; j < i; j++)
                assert_true(ids[i] != ids[j]);
            if (at < wanted && ids[i] == expected[at].id)
                at++;
        }
        assert_int_equal(at, wanted);
        old = now;
    }
}

static void test_search__leaves_out_what_was_deleted(void **state)
{
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo"), ids[2 * VERSIONS];
    struct said all[8];
    size_t count = 0;
    char cursor[128] = "", object[64];
    json_t *blockers = NULL;
    random_state = 5;
    for (size_t i = 0; i < MLO_COUNT(all); i++)
        all[i] = add(f, p);
    snprintf(object, sizeof object, "net%d", all[5].model);
    const struct mlo_deletion_request request = {
        .project_id = p, .model = object, .version = all[5].number, .reason = "wrong", .grace_s = 3600};
    assert_mlo_ok(mlo_delete(f->conn, &root, &request, &blockers, NULL, &f->err), &f->err);
    json_decref(blockers);
    const struct mlo_search search = {.project_id = p, .filter = ""};
    while (next_page(f, &search, 1, cursor, ids, &count))
        ;
    assert_int_equal(count, MLO_COUNT(all) - 1);
    for (size_t i = 0; i < count; i++)
        assert_true(ids[i] != all[5].id);
}

static void test_search__refuses_what_it_cannot_read(void **state)
{
    static const struct {
        const char *filter, *where;
    } cases[] = {
        {"team = a", "filter, column 1"},
        {"tag.a = 1 or tag.b = 2", "filter, column 11"},
        {"tag.a = ", "filter, column 9"},
        {"tag.a = \"x", "filter, column 9"},
        {"tag.a = \"x\\n\"", "filter, column 11"},
        {"tag.a < 3", "filter, column 1"},
        {"tag. = 3", "filter, column 1"},
        {"metric.a = good", "filter, column 1"},
        {"metric.a = \"0.5\"", "filter, column 1"},
        {"metric.a = nan", "filter, column 1"},
        {"metric.a ~ 0.5", "filter, column 1"},
        {"dirty = maybe", "filter, column 1"},
        {"tag.a,", "filter, column 7"},
        {", tag.a", "filter, column 1"},
        {"!tag.a = 3", "filter, column 2"},
        {"dataset = a@b", "filter, column 1"},
        {"version = latest", "filter, column 1"},
    };
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo");
    json_t *list;
    random_state = 3;
    for (int i = 0; i < 5; i++)
        add(f, p);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        const struct mlo_search search = {.project_id = p, .filter = cases[i].filter};
        memset(&f->err, 0, sizeof f->err);
        enum mlo_status status = mlo_version_search(f->conn, &search, NULL, &list, &f->err);
        if (status != MLO_EINVAL || strcmp(f->err.where, cases[i].where) != 0)
            fail_msg("'%s': %s at '%s': %s", cases[i].filter, mlo_status_info(status)->code, f->err.where,
                     f->err.message);
    }
    static const char *const orders[] = {"top1", "tag.a", "metric.a:up", "model", "metric.", ":asc"};
    for (size_t i = 0; i < MLO_COUNT(orders); i++) {
        const struct mlo_search search = {.project_id = p, .order = orders[i]};
        memset(&f->err, 0, sizeof f->err);
        assert_mlo_status(mlo_version_search(f->conn, &search, NULL, &list, &f->err), MLO_EINVAL, &f->err);
        assert_string_equal(f->err.where, "order");
    }
    /* a token goes on with its own search alone */
    const struct mlo_search search = {.project_id = p}, another = {.project_id = p, .order = "created:asc"},
                            filtered = {.project_id = p, .filter = "!tag.x"},
                            elsewhere = {.project_id = project(f, "other")};
    struct mlo_page page = {.limit = 2};
    assert_mlo_ok(mlo_version_search(f->conn, &search, &page, &list, &f->err), &f->err);
    char token[128];
    snprintf(token, sizeof token, "%s", mlo_json_str(list, "next", ""));
    json_decref(list);
    page.cursor = token;
    assert_mlo_status(mlo_version_search(f->conn, &another, &page, &list, &f->err), MLO_EINVAL, &f->err);
    assert_mlo_status(mlo_version_search(f->conn, &filtered, &page, &list, &f->err), MLO_EINVAL, &f->err);
    assert_mlo_status(mlo_version_search(f->conn, &elsewhere, &page, &list, &f->err), MLO_EINVAL, &f->err);
    assert_mlo_ok(mlo_version_search(f->conn, &search, &page, &list, &f->err), &f->err);
    json_decref(list);
    page.cursor = "12";
    assert_mlo_status(mlo_version_search(f->conn, &search, &page, &list, &f->err), MLO_EINVAL, &f->err);
}

static void test_search__datasets_by_name_and_version(void **state)
{
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo"), model;
    struct mlo_dataset_info data[2];
    static const struct {
        const char *filter;
        size_t found;
    } cases[] = {{"dataset = train", 2}, {"dataset = train@1", 1}, {"dataset != train@2", 1},
                 {"dataset = other", 0}, {"dataset", 2},           {"dataset ~ tr", 2}};
    assert_mlo_ok(mlo_model_ensure(f->conn, &root, p, "net", &model, &f->err), &f->err);
    for (int i = 0; i < 2; i++) {
        struct mlo_manifest_blob d = {.role = "data", .name = "d"}, b = {.role = "model", .name = "m"};
        struct mlo_version_info info;
        char text[MLO_DIGEST_TEXT_SIZE];
        mlo_digest_of(i ? "x" : "y", 1, &d.digest);
        mlo_digest_of(i ? "v" : "w", 1, &b.digest);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, p, &d.digest, 1, &f->err), &f->err);
        assert_mlo_ok(mlo_blob_record(f->conn, &root, p, &b.digest, 1, &f->err), &f->err);
        assert_mlo_ok(
            mlo_dataset_version_create(f->conn, &root, p, "train", "", NULL, &d, 1, &data[i], &f->err),
            &f->err);
        json_t *facts = json_pack("{s:[s]}", "datasets", mlo_digest_text(&data[i].manifest, text));
        const struct mlo_version_content c = {.facts = facts, .blobs = &b, .count = 1};
        assert_mlo_ok(mlo_version_add(f->conn, &root, model, &c, &info, &f->err), &f->err);
        json_decref(facts);
    }
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        const struct mlo_search search = {.project_id = p, .filter = cases[i].filter};
        json_t *list;
        assert_mlo_ok(mlo_version_search(f->conn, &search, NULL, &list, &f->err), &f->err);
        if (json_array_size(json_object_get(list, "items")) != cases[i].found)
            fail_msg("'%s' finds %zu", cases[i].filter, json_array_size(json_object_get(list, "items")));
        json_decref(list);
    }
}

/* The plan of a statement, whatever its parameters are. */
static void explain(struct pg_fixture *f, PGconn *pg, const struct mlo_sql *sql, const char *arguments,
                    struct mlo_buf *out)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_printf(&text, "PREPARE explained AS %s; EXPLAIN EXECUTE explained(%s)", sql->text, arguments);
    PGresult *result = PQexec(pg, mlo_buf_str(&text));
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", sql->name, PQresultErrorMessage(result));
    for (int i = 0; i < PQntuples(result); i++)
        mlo_buf_printf(out, "%s\n", PQgetvalue(result, i, 0));
    PQclear(result);
    mlo_buf_clear(&text);
    assert_mlo_ok(mlo_db_exec_text(f->conn, "DEALLOCATE explained", &f->err), &f->err);
}

/* How often an index was gone into so far, by all sessions that are idle now. */
static int64_t scans(struct pg_fixture *f, const char *index)
{
    struct mlo_buf text = MLO_BUF_INIT;
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SELECT pg_stat_force_next_flush()", &f->err), &f->err);
    mlo_buf_printf(&text, "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = '%s'", index);
    PGresult *result = PQexec(mlo_db_pg(f->conn), mlo_buf_str(&text));
    int64_t n = -1;
    if (PQntuples(result) != 1 || !mlo_str_to_i64(PQgetvalue(result, 0, 0), &n))
        fail_msg("%s is no index: %s", index, PQresultErrorMessage(result));
    PQclear(result);
    mlo_buf_clear(&text);
    return n;
}

/* 20,000 versions with their number, as a tag as well, a metric of 777 values and a licence of five. */
static void fill(struct pg_fixture *f)
{
    struct mlo_db_conn *owner;
    assert_mlo_ok(mlo_db_acquire(f->owner, &owner, &f->err), &f->err);
    assert_mlo_ok(
        mlo_db_exec_text(
            owner,
            "INSERT INTO model (project_id, name, created_by) SELECT id, 'net', 'me' FROM project;"
            "INSERT INTO version (model_id, number, manifest_digest, manifest, created_by) SELECT m.id, n, "
            "sha256(n::text::bytea), '{}', 'me' FROM model m, generate_series(1, 20000) n;"
            "INSERT INTO fact_name (project_id, kind, name) SELECT id, k, n FROM project, "
            "(VALUES ('version', ''), ('metric', 'm'), ('licence', ''), ('tag', 't')) v (k, n);"
            "INSERT INTO version_fact (version_id, name_id, text, number) SELECT v.id, n.id, CASE n.kind "
            "WHEN "
            "'licence' THEN (v.number % 5)::text WHEN 'tag' THEN v.number::text ELSE '' END, CASE n.kind "
            "WHEN 'version' THEN v.number WHEN "
            "'metric' THEN v.number % 777 END FROM version v, fact_name n;"
            "ANALYZE version_fact, version, fact_name, model, project",
            &f->err),
        &f->err);
    mlo_db_release(owner);
}

static void test_search__walks_indexes(void **state)
{
    static const char *const asked[] = {"version_fact_text", "version_fact_version", "version_fact_pkey"};
    static const struct {
        const char *name, *arguments, *index;
        bool asks; /* of what it walks, whether the rest fits */
    } cases[] = {
        {"search_id_desc", "'[]', 51, 1, '', 0, 1000, 5000", "version_fact_text", true},
        {"search_id_asc", "'[]', 51, 1, '', 0, 1000, 5000", "version_fact_text", true},
        {"search_number_desc", "'[]', 51, 1, 1, 1000, 0, 5000", "version_fact_number", true},
        {"search_number_asc", "'[]', 51, 1, 1, 1000, 0, 5000", "version_fact_number", true},
        {"search_few_id", "'[]', 51, 1, 'a', 'b', NULL, NULL, 1, 1000", "version_fact_text", true},
        {"search_few_number", "'[]', 51, 1, NULL, NULL, 0, 1, 1, 1000, 2, 1", "version_fact_number", true},
        {"search_counts", "'[]', 5000", "version_fact_text", false},
        {"search_end_id_desc", "1, '', 0, 1000, 5000", "version_fact_text", false},
        {"search_end_number_asc", "1, 1, 1000, 0, 5000", "version_fact_number", false},
        {"catalog_versions_tagged", "1, NULL, '[]', 1, 1, 0, '', 0, 51, '', '7'", "version_fact_text", false},
        {"catalog_versions_tagged_falling", "NULL, NULL, '[]', 1, 1, 0, '', 0, 51, '', '7'",
         "version_fact_text", false},
    };
    struct pg_fixture *f = *state;
    project(f, "demo");
    fill(f);
    assert_mlo_ok(mlo_db_exec_text(f->conn, "SET plan_cache_mode = force_generic_plan", &f->err), &f->err);
    size_t tables;
    const struct mlo_sql_table *table = mlo_registry_sql(&tables);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        struct mlo_buf plan = MLO_BUF_INIT;
        for (size_t t = 0; t < tables; t++)
            for (size_t s = 0; s < table[t].count; s++)
                if (strcmp(table[t].statements[s].name, cases[i].name) == 0)
                    explain(f, mlo_db_pg(f->conn), &table[t].statements[s], cases[i].arguments, &plan);
        bool walks = strstr(mlo_buf_str(&plan), cases[i].index) &&
                     !strstr(mlo_buf_str(&plan), "Seq Scan on version") &&
                     !strstr(mlo_buf_str(&plan), "Sort Key: version_fact") &&
                     !strstr(mlo_buf_str(&plan), "Gather");
        for (size_t j = 0; j < MLO_COUNT(asked) && cases[i].asks; j++)
            walks = walks && strstr(mlo_buf_str(&plan), asked[j]);
        if (!walks)
            fail_msg("%s does not walk %s:\n%s", cases[i].name, cases[i].index, mlo_buf_str(&plan));
        mlo_buf_clear(&plan);
    }
    assert_mlo_ok(mlo_db_exec_text(f->conn, "RESET plan_cache_mode", &f->err), &f->err);
}

static void test_search__asks_little_of_what_it_walks(void **state)
{
    static const struct {
        const char *filter;
        int64_t texts, numbers; /* how many versions it may ask for each, of a page of 50 */
    } cases[] = {
        {"metric.m >= 0 and licence = 3", 300, 60}, /* a fifth has the licence, so it is asked first */
        {"licence = 3 and metric.m >= 0", 300, 60},
        {"version >= 9 and licence = 3", 300, 0}, /* that is where the walk begins */
    };
    struct pg_fixture *f = *state;
    int64_t p = project(f, "demo");
    json_t *list;
    fill(f);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        const struct mlo_search search = {.project_id = p, .filter = cases[i].filter, .order = "version:asc"};
        const struct mlo_page page = {.limit = 50};
        int64_t texts = scans(f, "version_fact_text"), numbers = scans(f, "version_fact_version");
        assert_mlo_ok(mlo_version_search(f->conn, &search, &page, &list, &f->err), &f->err);
        assert_int_equal(json_array_size(json_object_get(list, "items")), 50);
        json_decref(list);
        texts = scans(f, "version_fact_text") - texts;
        numbers = scans(f, "version_fact_version") - numbers;
        if (texts < 50 || texts > cases[i].texts || numbers > cases[i].numbers)
            fail_msg("'%s' asked for %lld texts and %lld numbers", cases[i].filter, (long long)texts,
                     (long long)numbers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_search__finds_what_a_brute_force_finds, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_search__pages_lose_and_repeat_nothing, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_search__leaves_out_what_was_deleted, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_search__refuses_what_it_cannot_read, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_search__datasets_by_name_and_version, pg_fixture_setup,
                                        pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_search__walks_indexes, pg_fixture_setup, pg_fixture_teardown),
        cmocka_unit_test_setup_teardown(test_search__asks_little_of_what_it_walks, pg_fixture_setup,
                                        pg_fixture_teardown),
    };
    return cmocka_run_group_tests(tests, pg_fixture_start, pg_fixture_stop);
}
