/* Searching versions by facts. Statements have fixed shapes, each walking one index from where the page
 * begins: in the order asked for, among those with one value (or all, which have the version's own fact), or
 * through the few that have a rare one. What else is asked of a version is looked up by its id. */
#include "registry/search_impl.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "registry/facts_impl.h"
#include "registry/manifest_impl.h"
#include "registry/sql_impl.h"

/* Which condition has the fewest versions is counted up to the versions that a page looks at; those of one
 * that has less than this part of them are all looked at, and sorted. */
#define FEW_OF_LOOK 0.4

enum {
    SEARCH_NAMES,
    SEARCH_COUNTS,
    SEARCH_ID_DESC,
    SEARCH_ID_ASC,
    SEARCH_NUMBER_DESC,
    SEARCH_NUMBER_ASC,
    SEARCH_FEW_ID,
    SEARCH_FEW_NUMBER,
    SEARCH_END_ID_DESC,
    SEARCH_END_ID_ASC,
    SEARCH_END_NUMBER_DESC,
    SEARCH_END_NUMBER_ASC
};

/* The ranges of a filter ($1): f the name, lo and hi of text (else NULL), low and high, no: none may be. */
#define RANGES                                                                                               \
    "jsonb_to_recordset($1::jsonb) AS q (i bigint, f bigint, lo text, hi text, low double precision, "       \
    "high double precision, no boolean)"

/* Whether a candidate c fits them all: each is asked in the index where the facts of one name lie together,
 * as candidates lie all over the others. A version that is "between" itself makes the planner take that one
 * for a text; the one for a number holds versions above 0, so that who does not say so cannot walk it. */
#define ONE_OF "EXISTS (SELECT FROM version_fact x WHERE x.name_id = q.f AND "
#define FITS                                                                                                 \
    "NOT EXISTS (SELECT FROM " RANGES " WHERE q.no = CASE "                                                  \
    "WHEN q.lo IS NULL THEN " ONE_OF                                                                         \
    "x.version_id = c.version_id AND x.version_id > 0 AND x.number BETWEEN q.low AND q.high) "               \
    "WHEN q.lo = q.hi THEN " ONE_OF "x.text = q.lo AND x.version_id BETWEEN c.version_id AND c.version_id) " \
    "ELSE " ONE_OF "x.version_id = c.version_id AND x.text BETWEEN q.lo AND q.hi) END)"

/* A page ($2 rows) of candidates that fit, and what is shown of them. `order` is by c or w. What was deleted
 * is marked, and left out of the answer: its facts stay history. Found first, then shown: next to what the
 * planner thinks that finding costs, it would not care how the rest is read. */
#define PAGE(candidates, order_c, order_w)                                                                   \
    "WITH w AS MATERIALIZED (SELECT c.version_id, c.number FROM (" candidates ") c WHERE " FITS              \
    " ORDER BY " order_c " LIMIT $2) SELECT w.number AS cursor_number, w.version_id AS cursor_id, v.id, "    \
    "p.name AS project, m.name AS model, "                                                                   \
    "(v.deletion_id IS NOT NULL OR m.deletion_id IS NOT NULL) AS deleted, v.number AS version, "             \
    "v.manifest_digest, v.description, v.created_at, v.created_by, " MLO_FACTS_JSON(                         \
        "v.manifest") " FROM w JOIN version v ON v.id = w.version_id JOIN model m ON m.id = v.model_id "     \
                      "JOIN "                                                                                \
                      "project p ON p.id = m.project_id ORDER BY " order_w

/* By creation, among those with the text $b under the name $a, from the version $c on, before $d; $e at most.
 * Compared and ordered as rows, so that the index of texts is the only one that it can walk. */
#define ROW_OF "(name_id, text, version_id)"
#define BY_ID(a, b, low, high, limit, direction)                                                             \
    "SELECT name_id, text, version_id, NULL::double precision AS number FROM version_fact WHERE " ROW_OF     \
    " > (" a "::bigint, " b "::text, " low "::bigint) AND " ROW_OF " < (" a ", " b ", " high                 \
    "::bigint) ORDER BY name_id " direction ", text " direction ", version_id " direction " LIMIT " limit
/* By the number under the name $a, behind the number $b of the version $c, up to the number $d; $e at most.
 */
#define BY_NUMBER(a, b, c, d, limit, compare, ends, direction)                                               \
    "SELECT version_id, number FROM version_fact WHERE name_id = " a                                         \
    "::bigint AND (number, version_id) " compare " (" b "::double precision, " c                             \
    "::bigint) AND number " ends " " d "::double precision ORDER BY number " direction                       \
    ", version_id " direction " LIMIT " limit
/* Those in the range ($3 the name; $4, $5 or $6, $7). */
#define FEW_OF                                                                                               \
    "(SELECT version_id FROM version_fact WHERE name_id = $3::bigint AND text BETWEEN $4::text AND "         \
    "$5::text "                                                                                              \
    "UNION SELECT version_id FROM version_fact WHERE name_id = $3::bigint AND number BETWEEN "               \
    "$6::double precision AND $7::double precision)"

#define PAGE_BY_ID(direction)                                                                                \
    PAGE(BY_ID("$3", "$4", "$5", "$6", "$7", direction),                                                     \
         "c.name_id " direction ", c.text " direction ", c.version_id " direction,                           \
         "w.version_id " direction)
#define PAGE_BY_NUMBER(compare, ends, direction)                                                             \
    PAGE(BY_NUMBER("$3", "$4", "$5", "$6", "$7", compare, ends, direction),                                  \
         "c.number " direction ", c.version_id " direction,                                                  \
         "w.number " direction ", w.version_id " direction)
/* The last of the candidates that a page looked at. */
#define END_BY_ID(direction) BY_ID("$1", "$2", "$3", "$4", "1 OFFSET $5::bigint - 1", direction)
#define END_BY_NUMBER(compare, ends, direction)                                                              \
    BY_NUMBER("$1", "$2", "$3", "$4", "1 OFFSET $5::bigint - 1", compare, ends, direction)

const struct mlo_sql mlo_sql_search[] = {
    [SEARCH_NAMES] = {"search_names",
                      "SELECT q.i, n.id FROM jsonb_to_recordset($2::jsonb) AS q (i bigint, kind text, name "
                      "text) JOIN fact_name n ON n.project_id = $1 AND n.kind = q.kind AND n.name = q.name",
                      2},
    [SEARCH_COUNTS] =
        {"search_counts",
         "SELECT q.i, CASE WHEN q.lo IS NULL THEN (SELECT count(*) FROM (SELECT FROM version_fact f WHERE "
         "f.name_id = q.f AND f.number BETWEEN q.low AND q.high LIMIT $2) x) ELSE (SELECT count(*) FROM "
         "(SELECT FROM version_fact f WHERE f.name_id = q.f AND f.text BETWEEN q.lo AND q.hi LIMIT $2) x) "
         "END "
         "FROM " RANGES " WHERE NOT q.no",
         2},
    [SEARCH_ID_DESC] = {"search_id_desc", PAGE_BY_ID("DESC"), 7},
    [SEARCH_ID_ASC] = {"search_id_asc", PAGE_BY_ID("ASC"), 7},
    [SEARCH_NUMBER_DESC] = {"search_number_desc", PAGE_BY_NUMBER("<", ">=", "DESC"), 7},
    [SEARCH_NUMBER_ASC] = {"search_number_asc", PAGE_BY_NUMBER(">", "<=", "ASC"), 7},
    /* $8 is 1 or -1: up or down */
    [SEARCH_FEW_ID] = {"search_few_id",
                       PAGE("SELECT version_id, NULL::double precision AS number FROM " FEW_OF
                            " d WHERE $8::bigint * version_id > $8::bigint * $9::bigint",
                            "$8::bigint * c.version_id", "$8::bigint * w.version_id"),
                       9},
    [SEARCH_FEW_NUMBER] =
        {"search_few_number",
         PAGE("SELECT d.version_id, o.number FROM " FEW_OF
              " d JOIN version_fact o ON o.version_id = d.version_id AND o.name_id = $10::bigint "
              "AND o.number IS NOT NULL AND o.version_id > 0 WHERE ($8::bigint * o.number, $8::bigint * "
              "d.version_id) > "
              "($8::bigint * $11::double precision, $8::bigint * $9::bigint)",
              "$8::bigint * c.number, $8::bigint * c.version_id",
              "$8::bigint * w.number, $8::bigint * w.version_id"),
         11},
    [SEARCH_END_ID_DESC] = {"search_end_id_desc", END_BY_ID("DESC"), 5},
    [SEARCH_END_ID_ASC] = {"search_end_id_asc", END_BY_ID("ASC"), 5},
    [SEARCH_END_NUMBER_DESC] = {"search_end_number_desc", END_BY_NUMBER("<", ">=", "DESC"), 5},
    [SEARCH_END_NUMBER_ASC] = {"search_end_number_asc", END_BY_NUMBER(">", "<=", "ASC"), 5},
};
const size_t mlo_sql_search_count = MLO_COUNT(mlo_sql_search);

/* A search on its way: where the page begins, and which range leads. */
struct run {
    struct mlo_db_conn *conn;
    const struct mlo_search *search;
    struct mlo_search_query query;
    int64_t version_name; /* the name that all versions have a fact under */
    int64_t limit, look;
    double number; /* the page begins behind (number, id) */
    int64_t id;
    uint8_t what[16]; /* of a token: which search it belongs to */
    bool nothing;     /* a name that must be there is not */
    const struct mlo_search_range *leader;
    bool few; /* the leader has few: all of them are looked at */
};

/* --- tokens: 16 bytes that name the search, the number's bits, the version's id ------------------ */

static void put64(uint8_t *to, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(value >> (56 - 8 * i));
}

static uint64_t get64(const uint8_t *from)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | from[i];
    return value;
}

static enum mlo_status name_search(struct run *r, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_digest digest;
    mlo_buf_printf(&text, "%lld\n%s\n%s", (long long)r->search->project_id,
                   r->search->order && *r->search->order ? r->search->order : "created:desc",
                   r->search->filter ? r->search->filter : "");
    if (!mlo_buf_ok(&text))
        return mlo_error_nomem(err);
    mlo_digest_of(mlo_buf_str(&text), text.len, &digest);
    memcpy(r->what, digest.bytes, sizeof r->what);
    mlo_buf_clear(&text);
    return MLO_OK;
}

static json_t *token(const struct run *r, double number, int64_t id)
{
    uint8_t bytes[32];
    uint64_t bits;
    char text[2 * sizeof bytes + 1];
    memcpy(bytes, r->what, 16);
    memcpy(&bits, &number, sizeof bits);
    put64(bytes + 16, bits);
    put64(bytes + 24, (uint64_t)id);
    mlo_hex(bytes, sizeof bytes, text);
    return json_string(text);
}

static enum mlo_status read_token(struct run *r, const char *text, struct mlo_error *err)
{
    struct mlo_digest t; /* as long as one, and written as one */
    uint64_t bits;
    r->number = r->query.ascending ? -DBL_MAX : DBL_MAX;
    r->id = r->query.ascending ? 0 : INT64_MAX;
    if (!text || !*text)
        return MLO_OK;
    if (strlen(text) != 2 * sizeof t.bytes || !mlo_digest_parse(text, &t) ||
        memcmp(t.bytes, r->what, sizeof r->what) != 0)
        goto wrong;
    bits = get64(t.bytes + 16);
    memcpy(&r->number, &bits, sizeof bits);
    r->id = (int64_t)get64(t.bytes + 24);
    if (isfinite(r->number) && r->id > 0)
        return MLO_OK;
wrong:
    mlo_error_set(err, MLO_EINVAL, "the cursor is not one that this search gave");
    mlo_error_where(err, "query argument 'cursor'");
    mlo_error_hint(err, "go on with the same filter and order, or begin without a cursor");
    return MLO_EINVAL;
}

/* --- names and ranges -------------------------------------------------------------------------- */

static json_t *name_row(size_t i, const char *kind, const char *name)
{
    return json_pack("{s:I, s:s, s:s}", "i", (json_int_t)i, "kind", kind, "name", name);
}

/* The ids of all names. A range without one cannot hold, or, negated, holds always. */
static enum mlo_status find_names(struct run *r, struct mlo_error *err)
{
    struct mlo_search_query *q = &r->query;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status = MLO_OK;
    json_t *names = json_array();
    const size_t order = q->count, version = q->count + 1;
    for (size_t i = 0; i < q->count; i++)
        json_array_append_new(names, name_row(i, q->ranges[i].kind, q->ranges[i].name));
    if (q->order_kind)
        json_array_append_new(names, name_row(order, q->order_kind, q->order_name));
    json_array_append_new(names, name_row(version, "version", ""));
    if (json_array_size(names) != q->count + 1 + (q->order_kind != NULL)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_json_canonical(names, &text);
    if (!mlo_buf_ok(&text)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_param_i64(&p, r->search->project_id);
    mlo_param_text(&p, mlo_buf_str(&text));
    MLO_TRY(mlo_db_exec(r->conn, &mlo_sql_search[SEARCH_NAMES], &p, &rows, err));
    for (int row = 0; row < mlo_rows_count(&rows); row++) {
        size_t i = (size_t)mlo_rows_i64(&rows, row, 0);
        int64_t id = mlo_rows_i64(&rows, row, 1);
        if (i < q->count)
            q->ranges[i].name_id = id;
        else if (i == order)
            q->order_id = id;
        else
            r->version_name = id;
    }
    r->nothing = !r->version_name || (q->order_kind && !q->order_id);
    for (size_t i = 0; i < q->count; i++)
        r->nothing = r->nothing || (!q->ranges[i].name_id && !q->ranges[i].negated);
out:
    json_decref(names);
    mlo_buf_clear(&text);
    mlo_rows_clear(&rows);
    return status;
}

/* Whether all candidates fit it: they are walked by it, or within it (walk_bounds). */
static bool walked(const struct run *r, const struct mlo_search_range *range)
{
    return range == r->leader || (r->query.order_kind && !r->few && range->number && !range->negated &&
                                  range->name_id == r->query.order_id);
}

/* The ranges for a statement; `asked`: but those that all candidates fit. */
static enum mlo_status ranges_json(const struct run *r, bool asked, struct mlo_buf *out,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    json_t *list = json_array(), *row;
    for (size_t i = 0; i < r->query.count; i++) {
        const struct mlo_search_range *range = &r->query.ranges[i];
        if (!range->name_id || (asked && walked(r, range)))
            continue;
        row = json_pack("{s:I, s:I, s:b}", "i", (json_int_t)i, "f", (json_int_t)range->name_id, "no",
                        range->negated);
        bool ok = row && (range->number ? json_object_set_new(row, "low", json_real(range->low)) == 0 &&
                                              json_object_set_new(row, "high", json_real(range->high)) == 0
                                        : json_object_set_new(row, "lo", json_string(range->lo)) == 0 &&
                                              json_object_set_new(row, "hi", json_string(range->hi)) == 0);
        if (!ok) {
            json_decref(row);
            status = mlo_error_set(err, MLO_EINVAL, "the filter is not UTF-8");
            goto out;
        }
        json_array_append_new(list, row);
    }
    mlo_json_canonical(list, out);
    if (!mlo_buf_ok(out))
        status = mlo_error_nomem(err);
out:
    json_decref(list);
    return status;
}

/* --- which index to walk ------------------------------------------------------------------------ */

static bool one_text(const struct mlo_search_range *range)
{
    return !range->negated && !range->number && strcmp(range->lo, range->hi) == 0;
}

/* What drops the most is asked first: of a candidate nothing more is asked then. */
static int by_count(const void *a, const void *b)
{
    const struct mlo_search_range *x = a, *y = b;
    if (x->negated != y->negated)
        return x->negated ? 1 : -1;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return one_text(y) - one_text(x);
}

/* The range that the fewest versions fit: few enough to take them all, or the one to walk by creation. */
static enum mlo_status choose(struct run *r, struct mlo_error *err)
{
    struct mlo_search_range *ranges = r->query.ranges;
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status = MLO_OK;
    size_t leading = 0;
    for (size_t i = 0; i < r->query.count; i++)
        leading += !ranges[i].negated;
    if (leading == 0)
        return MLO_OK;
    if (r->query.count == 1 && !r->query.order_kind && one_text(ranges)) {
        r->leader = ranges; /* the walk finds nothing else */
        return MLO_OK;
    }
    MLO_TRY(ranges_json(r, false, &text, err));
    mlo_param_text(&p, mlo_buf_str(&text));
    mlo_param_i64(&p, r->look);
    MLO_TRY(mlo_db_exec(r->conn, &mlo_sql_search[SEARCH_COUNTS], &p, &rows, err));
    for (int row = 0; row < mlo_rows_count(&rows); row++)
        ranges[mlo_rows_i64(&rows, row, 0)].count = mlo_rows_i64(&rows, row, 1);
    qsort(ranges, r->query.count, sizeof *ranges, by_count);
    r->few = (double)ranges->count <= FEW_OF_LOOK * (double)r->look;
    for (size_t i = 0; i < leading && !r->leader; i++)
        if (r->few || (!r->query.order_kind && one_text(&ranges[i])))
            r->leader = &ranges[i];
out:
    mlo_buf_clear(&text);
    mlo_rows_clear(&rows);
    return status;
}

/* The bounds of the number that is walked: those that the filter sets it. */
static void walk_bounds(const struct run *r, double *low, double *high)
{
    *low = -DBL_MAX;
    *high = DBL_MAX;
    for (size_t i = 0; i < r->query.count; i++) {
        const struct mlo_search_range *range = &r->query.ranges[i];
        if (!range->number || range->negated || range->name_id != r->query.order_id)
            continue;
        *low = fmax(*low, range->low);
        *high = fmin(*high, range->high);
    }
}

/* Adds what says where to walk: from $3 in a page, from $1 in the search for its end. */
static void add_walk(const struct run *r, struct mlo_params *p)
{
    const bool up = r->query.ascending;
    double low, high;
    if (r->query.order_kind) {
        walk_bounds(r, &low, &high);
        /* it begins behind the page before, or where the filter lets it: one place, so that it is found at
         * once */
        bool before = up ? r->number < low : r->number > high;
        mlo_param_i64(p, r->query.order_id);
        mlo_param_f64(p, before ? (up ? low : high) : r->number);
        mlo_param_i64(p, before ? (up ? 0 : INT64_MAX) : r->id);
        mlo_param_f64(p, up ? high : low);
    } else {
        mlo_param_i64(p, r->leader ? r->leader->name_id : r->version_name);
        mlo_param_text(p, r->leader ? r->leader->lo : "");
        mlo_param_i64(p, up ? r->id : 0);
        mlo_param_i64(p, up ? INT64_MAX : r->id);
    }
    mlo_param_i64(p, r->look);
}

static void add_few(const struct run *r, struct mlo_params *p)
{
    const struct mlo_search_range *leader = r->leader;
    mlo_param_i64(p, leader->name_id);
    mlo_param_text(p, leader->number ? NULL : leader->lo);
    mlo_param_text(p, leader->number ? NULL : leader->hi);
    mlo_param_f64(p, leader->number ? leader->low : NAN); /* that is: NULL */
    mlo_param_f64(p, leader->number ? leader->high : NAN);
    mlo_param_i64(p, r->query.ascending ? 1 : -1);
    mlo_param_i64(p, r->id);
    if (r->query.order_kind) {
        mlo_param_i64(p, r->query.order_id);
        mlo_param_f64(p, r->number);
    }
}

/* --- the page ----------------------------------------------------------------------------------- */

/* Where a page that is not full stopped looking; *next is null at the end of all. */
static enum mlo_status find_end(const struct run *r, json_t **next, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    int statement = (r->query.order_kind ? SEARCH_END_NUMBER_DESC : SEARCH_END_ID_DESC) + r->query.ascending;
    add_walk(r, &p);
    enum mlo_status status = mlo_db_exec(r->conn, &mlo_sql_search[statement], &p, &rows, err);
    if (status == MLO_OK)
        *next = mlo_rows_count(&rows) ? token(r, r->query.order_kind ? mlo_rows_f64(&rows, 0, 1) : r->number,
                                              mlo_rows_i64(&rows, 0, r->query.order_kind ? 0 : 2))
                                      : json_null();
    mlo_rows_clear(&rows);
    return status;
}

static enum mlo_status read_page(const struct run *r, const struct mlo_rows *rows, json_t **out,
                                 struct mlo_error *err)
{
    int count = mlo_rows_count(rows), last = (int)r->limit - 1;
    json_t *items = json_array(), *next = NULL;
    enum mlo_status status = MLO_OK;
    if (count > r->limit) {
        next = token(r, r->query.order_kind ? mlo_rows_f64(rows, last, 0) : r->number,
                     mlo_rows_i64(rows, last, 1));
        count = last + 1;
    } else if (r->few) {
        next = json_null();
    } else {
        MLO_TRY(find_end(r, &next, err));
    }
    for (int row = 0; row < count; row++) {
        json_t *item = mlo_rows_json(rows, row);
        if (mlo_json_bool(item, "deleted", false)) {
            json_decref(item);
            continue;
        }
        if (item) {
            json_object_del(item, "deleted");
            json_object_del(item, "cursor_number");
            json_object_del(item, "cursor_id");
        }
        if (json_array_append_new(items, item) != 0) {
            status = mlo_error_nomem(err);
            goto out;
        }
    }
    *out = json_pack("{s:O, s:O}", "items", items, "next", next);
    if (!*out)
        status = mlo_error_nomem(err);
out:
    json_decref(items);
    json_decref(next);
    return status;
}

static enum mlo_status run_page(const struct run *r, json_t **out, struct mlo_error *err)
{
    struct mlo_params p = MLO_PARAMS_INIT;
    struct mlo_rows rows = {0};
    struct mlo_buf text = MLO_BUF_INIT;
    int statement;
    const bool outermost = !mlo_db_in_transaction(r->conn);
    enum mlo_status status = mlo_db_begin(r->conn, err);
    if (status != MLO_OK)
        return status;
    if (outermost) /* the page and its end of one moment */
        MLO_TRY(mlo_db_exec_text(r->conn, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY", err));
    MLO_TRY(ranges_json(r, true, &text, err));
    mlo_param_text(&p, mlo_buf_str(&text));
    mlo_param_i64(&p, r->limit + 1);
    if (r->few) {
        statement = r->query.order_kind ? SEARCH_FEW_NUMBER : SEARCH_FEW_ID;
        add_few(r, &p);
    } else {
        statement = (r->query.order_kind ? SEARCH_NUMBER_DESC : SEARCH_ID_DESC) + r->query.ascending;
        add_walk(r, &p);
    }
    MLO_TRY(mlo_db_exec(r->conn, &mlo_sql_search[statement], &p, &rows, err));
    MLO_TRY(read_page(r, &rows, out, err));
out:
    mlo_buf_clear(&text);
    mlo_rows_clear(&rows);
    return mlo_db_end(r->conn, status, err);
}

enum mlo_status mlo_version_search(struct mlo_db_conn *conn, const struct mlo_search *search,
                                   const struct mlo_page *page, json_t **out, struct mlo_error *err)
{
    struct run r = {
        .conn = conn, .search = search, .look = search->look > 0 ? search->look : MLO_SEARCH_LOOK};
    enum mlo_status status;
    *out = NULL;
    r.query.ranges = calloc(MLO_SEARCH_CONDITIONS_MAX, sizeof *r.query.ranges);
    if (!r.query.ranges)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_page_limit(page, &r.limit, err));
    MLO_TRY(mlo_search_parse(conn, search, &r.query, err));
    MLO_TRY(name_search(&r, err));
    MLO_TRY(read_token(&r, page ? page->cursor : NULL, err));
    MLO_TRY(find_names(&r, err));
    if (r.nothing) {
        *out = json_pack("{s:[], s:n}", "items", "next");
        status = *out ? MLO_OK : mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(choose(&r, err));
    MLO_TRY(run_page(&r, out, err));
out:
    free(r.query.ranges);
    return status;
}
