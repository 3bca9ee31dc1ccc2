/* Parameters that are arrays, in PostgreSQL's binary form: no value is quoted or read as text. */
#include <arpa/inet.h>
#include <math.h>
#include <string.h>

#include "registry/db.h"

/* Types by the OIDs of pg_type, which never change. */
enum { OID_BYTEA = 17, OID_INT8 = 20, OID_TEXT = 25, OID_FLOAT8 = 701, OID_UUID = 2950 };
/* one dimension; whether some are NULL; the elements' type; how many; the first one's number */
enum { HEAD_DIMENSIONS, HEAD_NULLS, HEAD_TYPE, HEAD_COUNT, HEAD_FIRST, HEAD_WORDS };

static void put_word(struct mlo_buf *out, uint32_t word)
{
    uint32_t bytes = htonl(word);
    mlo_buf_append(out, &bytes, sizeof bytes);
}

static void put(struct mlo_array *array, uint32_t type, const void *value, size_t size)
{
    if (array->count++ == 0) {
        array->type = type;
        for (int i = 0; i < HEAD_WORDS; i++)
            put_word(&array->bytes, 0);
    }
    array->nulls = array->nulls || !value;
    put_word(&array->bytes, value ? (uint32_t)size : UINT32_MAX);
    if (value)
        mlo_buf_append(&array->bytes, value, size);
}

static const void *big_endian(uint64_t value, unsigned char out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(value >> (56 - 8 * i));
    return out;
}

void mlo_array_text(struct mlo_array *array, const char *text)
{
    put(array, OID_TEXT, text, text ? strlen(text) : 0);
}

void mlo_array_i64(struct mlo_array *array, int64_t value)
{
    unsigned char bytes[8];
    put(array, OID_INT8, big_endian((uint64_t)value, bytes), sizeof bytes);
}

void mlo_array_f64(struct mlo_array *array, double value)
{
    unsigned char bytes[8];
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(array, OID_FLOAT8, isfinite(value) ? big_endian(bits, bytes) : NULL, sizeof bytes);
}

void mlo_array_digest(struct mlo_array *array, const struct mlo_digest *digest)
{
    put(array, OID_BYTEA, digest ? digest->bytes : NULL, MLO_DIGEST_SIZE);
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void mlo_array_uuid(struct mlo_array *array, const char *text)
{
    unsigned char bytes[16] = {0};
    size_t digits = 0;
    for (; *text && digits < 2 * sizeof bytes; text++) {
        int nibble = hex(*text);
        if (nibble >= 0) {
            bytes[digits / 2] |= (unsigned char)(digits % 2 ? nibble : nibble << 4);
            digits++;
        } else if (*text != '-') {
            break;
        }
    }
    put(array, OID_UUID, digits == 2 * sizeof bytes && !*text ? bytes : NULL, sizeof bytes);
}

enum mlo_status mlo_param_array(struct mlo_params *params, struct mlo_array *array, struct mlo_error *err)
{
    if (!mlo_buf_ok(&array->bytes))
        return mlo_error_nomem(err);
    if (array->bytes.len > INT32_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "an array of a statement has %zu bytes", array->bytes.len);
    if (array->count > 0) {
        const uint32_t head[HEAD_WORDS] = {htonl(1), htonl(array->nulls), htonl(array->type),
                                           htonl((uint32_t)array->count), htonl(1)};
        memcpy(array->bytes.data, head, sizeof head);
        mlo_param_bytes(params, array->bytes.data, array->bytes.len);
    } else {
        mlo_param_text(params, "{}");
    }
    return MLO_OK;
}

void mlo_array_clear(struct mlo_array *array)
{
    mlo_buf_clear(&array->bytes);
    array->count = 0;
}
