/* Statements, parameters and rows. */
#include "registry/db_impl.h"
#include "registry/gather.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- parameters --------------------------------------------------------------------------------------------
 */

static int slot(struct mlo_params *params, const char *value, size_t size, int format)
{
    if (params->count >= MLO_PARAMS_MAX)
        abort(); /* a statement of ours with too many: found by its first test */
    int i = params->count++;
    params->values[i] = value;
    params->sizes[i] = (int)size;
    params->formats[i] = format;
    return i;
}

void mlo_param_text(struct mlo_params *params, const char *text)
{
    slot(params, text, 0, 0);
}

void mlo_param_i64(struct mlo_params *params, int64_t value)
{
    int i = slot(params, NULL, 0, 0);
    snprintf(params->numbers[i], sizeof params->numbers[i], "%lld", (long long)value);
    params->values[i] = params->numbers[i];
}

void mlo_param_id(struct mlo_params *params, int64_t value)
{
    if (value)
        mlo_param_i64(params, value);
    else
        mlo_param_null(params);
}

void mlo_param_f64(struct mlo_params *params, double value)
{
    int i = slot(params, NULL, 0, 0);
    if (!isfinite(value))
        return;
    snprintf(params->numbers[i], sizeof params->numbers[i], "%.17g", value);
    params->values[i] = params->numbers[i];
}

void mlo_param_bool(struct mlo_params *params, bool value)
{
    slot(params, value ? "t" : "f", 0, 0);
}

void mlo_param_null(struct mlo_params *params)
{
    slot(params, NULL, 0, 0);
}

void mlo_param_bytes(struct mlo_params *params, const void *bytes, size_t size)
{
    slot(params, bytes, size, 1);
}

void mlo_param_digest(struct mlo_params *params, const struct mlo_digest *digest)
{
    slot(params, digest ? (const char *)digest->bytes : NULL, MLO_DIGEST_SIZE, 1);
}

/* --- rows -------------------------------------------------------------------------------------- */

void mlo_rows_clear(struct mlo_rows *rows)
{
    PQclear(rows->result);
    rows->result = NULL;
}

int mlo_rows_count(const struct mlo_rows *rows)
{
    return PQntuples(rows->result);
}

int64_t mlo_rows_affected(const struct mlo_rows *rows)
{
    int64_t n = 0;
    return mlo_str_to_i64(PQcmdTuples(rows->result), &n) ? n : 0;
}

bool mlo_rows_null(const struct mlo_rows *rows, int row, int column)
{
    return PQgetisnull(rows->result, row, column);
}

const char *mlo_rows_text(const struct mlo_rows *rows, int row, int column)
{
    return PQgetisnull(rows->result, row, column) ? NULL : PQgetvalue(rows->result, row, column);
}

int64_t mlo_rows_i64(const struct mlo_rows *rows, int row, int column)
{
    int64_t value = 0;
    return mlo_str_to_i64(PQgetvalue(rows->result, row, column), &value) ? value : 0;
}

double mlo_rows_f64(const struct mlo_rows *rows, int row, int column)
{
    double value;
    return mlo_str_to_f64(PQgetvalue(rows->result, row, column), &value) ? value : (double)NAN;
}

bool mlo_rows_bool(const struct mlo_rows *rows, int row, int column)
{
    return PQgetvalue(rows->result, row, column)[0] == 't';
}

static int nibble(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10; /* PostgreSQL writes lowercase */
}

void mlo_rows_bytes(const struct mlo_rows *rows, int row, int column, struct mlo_buf *out)
{
    const char *text = PQgetvalue(rows->result, row, column); /* "\x6d6c…" */
    size_t size = (size_t)PQgetlength(rows->result, row, column);
    if (size < 2 || !mlo_buf_reserve(out, size / 2))
        return;
    char *to = out->data + out->len;
    for (size_t i = 2; i + 1 < size; i += 2)
        *to++ = (char)(nibble(text[i]) << 4 | nibble(text[i + 1]));
    *to = '\0';
    out->len = (size_t)(to - out->data);
}

bool mlo_rows_digest(const struct mlo_rows *rows, int row, int column, struct mlo_digest *out)
{
    const char *text = PQgetvalue(rows->result, row, column);
    return PQgetlength(rows->result, row, column) == 2 + 2 * MLO_DIGEST_SIZE &&
           mlo_digest_parse(text + 2, out);
}

/* Types by the OIDs of pg_type, which never change. */
enum {
    OID_BOOL = 16,
    OID_BYTEA = 17,
    OID_INT8 = 20,
    OID_INT2 = 21,
    OID_INT4 = 23,
    OID_JSON = 114,
    OID_FLOAT4 = 700,
    OID_FLOAT8 = 701,
    OID_TIMESTAMPTZ = 1184,
    OID_JSONB = 3802
};

/* "2026-01-31 12:34:56.789012+00" -> "2026-01-31T12:34:56.789Z" */
static json_t *time_json(const char *text)
{
    char out[32];
    size_t n = strcspn(text, "+");
    if (n < 19 || n > 27)
        return json_string(text);
    char fraction[4] = "000";
    for (size_t i = 20; i < n && i < 23; i++)
        fraction[i - 20] = text[i];
    snprintf(out, sizeof out, "%.10sT%.8s.%sZ", text, text + 11, fraction);
    return json_string(out);
}

static json_t *cell_json(const struct mlo_rows *rows, int row, int column)
{
    const char *text = mlo_rows_text(rows, row, column);
    struct mlo_digest digest;
    if (!text)
        return json_null();
    switch (PQftype(rows->result, column)) {
    case OID_BOOL:
        return json_boolean(text[0] == 't');
    case OID_INT2:
    case OID_INT4:
    case OID_INT8:
        return json_integer(mlo_rows_i64(rows, row, column));
    case OID_FLOAT4:
    case OID_FLOAT8:
        return json_real(mlo_rows_f64(rows, row, column));
    case OID_JSON:
    case OID_JSONB:
        return json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    case OID_TIMESTAMPTZ:
        return time_json(text);
    case OID_BYTEA:
        if (mlo_rows_digest(rows, row, column, &digest)) {
            char out[MLO_DIGEST_TEXT_SIZE];
            return json_string(mlo_digest_text(&digest, out));
        }
        return json_string(text);
    default:
        return json_string(text);
    }
}

json_t *mlo_rows_json(const struct mlo_rows *rows, int row)
{
    json_t *object = json_object();
    for (int c = 0; object && c < PQnfields(rows->result); c++) {
        if (json_object_set_new(object, PQfname(rows->result, c), cell_json(rows, row, c)) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

void mlo_rows_json_text(const struct mlo_rows *rows, int row, int first, struct mlo_buf *out)
{
    for (int c = first; c < PQnfields(rows->result); c++) {
        Oid type = PQftype(rows->result, c);
        mlo_buf_printf(out, "%c\"%s\":", c == first ? '{' : ',', PQfname(rows->result, c));
        if ((type == OID_JSON || type == OID_JSONB) && !mlo_rows_null(rows, row, c)) {
            mlo_buf_puts(out, mlo_rows_text(rows, row, c));
            continue;
        }
        json_t *value = cell_json(rows, row, c);
        if (value)
            mlo_json_canonical(value, out);
        else
            out->failed = true;
        json_decref(value);
    }
    mlo_buf_putc(out, '}');
}

json_t *mlo_rows_json_all(const struct mlo_rows *rows)
{
    json_t *array = json_array();
    for (int r = 0; array && r < mlo_rows_count(rows); r++) {
        if (json_array_append_new(array, mlo_rows_json(rows, r)) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

/* --- running ----------------------------------------------------------------------------------- */

/* The place of a statement in the connection's set: its own, or the free one to put it. */
static size_t prepared_slot(const struct mlo_db_conn *conn, const struct mlo_sql *sql)
{
    size_t i = ((uintptr_t)sql / sizeof(void *)) % PREPARED_MAX;
    while (conn->prepared[i] && conn->prepared[i] != sql)
        i = (i + 1) % PREPARED_MAX;
    return i;
}

static enum mlo_status prepare(struct mlo_db_conn *conn, const struct mlo_sql *sql, struct mlo_error *err)
{
    size_t i = prepared_slot(conn, sql);
    if (conn->prepared[i])
        return MLO_OK;
    if (conn->prepared_count + 1 >= PREPARED_MAX)
        return mlo_error_set(err, MLO_EINTERNAL, "more than %d prepared statements", PREPARED_MAX - 1);
    enum mlo_status flushed = mlo_db_flush(conn, err); /* once for a statement and connection */
    if (flushed != MLO_OK)
        return flushed;
    PGresult *result = mlo_db_answers(conn, PQsendPrepare(conn->pg, sql->name, sql->text, 0, NULL));
    enum mlo_status status = MLO_OK;
    if (PQresultStatus(result) == PGRES_COMMAND_OK) {
        conn->prepared[i] = sql;
        conn->prepared_count++;
    } else {
        status = mlo_db_fail(conn, result, sql->name, err);
    }
    PQclear(result);
    return status;
}

enum mlo_status mlo_db_prepare(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                               const struct mlo_params *params, struct mlo_error *err)
{
    int count = params ? params->count : 0;
    if (count != sql->params)
        return mlo_error_set(err, MLO_EINTERNAL, "statement %s takes %d parameters, not %d", sql->name,
                             sql->params, count);
    return prepare(conn, sql, err);
}

enum mlo_status mlo_db_exec(struct mlo_db_conn *conn, const struct mlo_sql *sql,
                            const struct mlo_params *params, struct mlo_rows *rows, struct mlo_error *err)
{
    enum mlo_status status;
    if (rows)
        mlo_rows_clear(rows);
    if (mlo_db_ahead_take(conn, sql, params, rows, &status, err))
        return status;
    if (conn->queued > 0) { /* together with what waits */
        status = mlo_db_queue(conn, sql, params, rows, err);
        return status == MLO_OK ? mlo_db_flush(conn, err) : status;
    }
    status = mlo_db_prepare(conn, sql, params, err);
    if (status != MLO_OK)
        return status;
    int sent = PQsendQueryPrepared(conn->pg, sql->name, sql->params, params ? params->values : NULL,
                                   params ? params->sizes : NULL, params ? params->formats : NULL, 0);
    PGresult *result = mlo_db_answers(conn, sent);
    ExecStatusType outcome = PQresultStatus(result);
    if (outcome != PGRES_TUPLES_OK && outcome != PGRES_COMMAND_OK)
        status = mlo_db_fail(conn, result, sql->name, err);
    if (status == MLO_OK && rows)
        rows->result = result;
    else
        PQclear(result);
    return status;
}

enum mlo_status mlo_db_exec_text(struct mlo_db_conn *conn, const char *text, struct mlo_error *err)
{
    enum mlo_status status = mlo_db_flush(conn, err);
    if (status != MLO_OK)
        return status;
    PGresult *result = mlo_db_answers(conn, PQsendQuery(conn->pg, text));
    ExecStatusType outcome = PQresultStatus(result);
    if (outcome != PGRES_TUPLES_OK && outcome != PGRES_COMMAND_OK && outcome != PGRES_EMPTY_QUERY)
        status = mlo_db_fail(conn, result, "SQL", err);
    else if (!mlo_db_did(result, text))
        status = mlo_error_set(err, MLO_EINTERNAL, MLO_NOT_COMMITTED);
    PQclear(result);
    return status;
}

enum mlo_status mlo_db_prepare_all(struct mlo_db_conn *conn, const struct mlo_sql *table, size_t count,
                                   struct mlo_error *err)
{
    for (size_t i = 0; i < count; i++) {
        enum mlo_status status = prepare(conn, &table[i], err);
        if (status != MLO_OK)
            return status;
        PGresult *result = mlo_db_answers(conn, PQsendDescribePrepared(conn->pg, table[i].name));
        int params = PQresultStatus(result) == PGRES_COMMAND_OK ? PQnparams(result) : -1;
        PQclear(result);
        if (params != table[i].params)
            return mlo_error_set(err, MLO_EINTERNAL, "statement %s has %d parameters, its row says %d",
                                 table[i].name, params, table[i].params);
    }
    return MLO_OK;
}
