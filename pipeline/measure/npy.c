#include "pipeline/measure/npy_impl.h"

#include <ctype.h>
#include <string.h>

static const struct {
    const char *code; /* kind and size, as in descr behind the byte order */
    enum mlo_dtype dtype;
} npy_types[] = {
    {"b1", MLO_BOOL},  {"u1", MLO_UINT8},   {"i1", MLO_INT8},    {"u2", MLO_UINT16},
    {"i2", MLO_INT16}, {"u4", MLO_UINT32},  {"i4", MLO_INT32},   {"u8", MLO_UINT64},
    {"i8", MLO_INT64}, {"f2", MLO_FLOAT16}, {"f4", MLO_FLOAT32}, {"f8", MLO_FLOAT64},
};

enum mlo_status mlo_npy_preamble(const uint8_t *bytes, size_t *text_offset, size_t *text_size,
                                 struct mlo_error *err)
{
    if (memcmp(bytes, "\x93NUMPY", 6) != 0)
        return mlo_error_set(err, MLO_EFORMAT, "it does not begin with the .npy magic bytes");
    if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0)
        return mlo_error_set(err, MLO_EUNSUPPORTED, ".npy format version %d.%d is not known (1.0 to 3.0 are)",
                             bytes[6], bytes[7]);
    *text_offset = bytes[6] == 1 ? 10 : 12;
    *text_size = bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] > 1)
        *text_size |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (*text_size > MLO_NPY_HEADER_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "its .npy header of %zu bytes is longer than %d", *text_size,
                             MLO_NPY_HEADER_MAX);
    return MLO_OK;
}

struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n'))
        c->at++;
}

static bool take(struct cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    size_t n = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
        return false;
    c->at += n;
    return true;
}

/* A quoted string without escapes, which is all that numpy writes. */
static bool take_string(struct cursor *c, char *out, size_t size)
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return false;
    char quote = *c->at++;
    size_t n = 0;
    while (c->at < c->end && *c->at != quote) {
        if (*c->at == '\\' || n + 1 >= size)
            return false;
        out[n++] = *c->at++;
    }
    out[n] = '\0';
    return take(c, quote);
}

static bool take_dim(struct cursor *c, int64_t *out)
{
    skip_space(c);
    if (c->at == c->end || !isdigit((unsigned char)*c->at))
        return false;
    *out = 0;
    while (c->at < c->end && isdigit((unsigned char)*c->at)) {
        int digit = *c->at++ - '0';
        if (*out > (INT64_MAX - digit) / 10)
            return false;
        *out = *out * 10 + digit;
    }
    if (c->at < c->end && *c->at == 'L') /* Python 2 wrote long integers so */
        c->at++;
    return true;
}

static enum mlo_status parse_shape(struct cursor *c, struct mlo_npy_header *out, struct mlo_error *err)
{
    if (!take(c, '('))
        return mlo_error_set(err, MLO_EFORMAT, "'shape' in its .npy header is not a tuple");
    while (!take(c, ')')) {
        int64_t dim;
        if (!take_dim(c, &dim))
            return mlo_error_set(err, MLO_EFORMAT, "'shape' in its .npy header holds no valid sizes");
        if (out->rank == MLO_MAX_RANK)
            return mlo_error_set(err, MLO_EUNSUPPORTED, "it has more than %d axes", MLO_MAX_RANK);
        out->dims[out->rank++] = dim;
        if (!take(c, ',')) {
            if (!take(c, ')') || out->rank == 1) /* (3) is no tuple in Python */
                return mlo_error_set(err, MLO_EFORMAT, "'shape' in its .npy header is not a tuple");
            break;
        }
    }
    return MLO_OK;
}

static void parse_type(const char *descr, struct mlo_npy_header *out)
{
    out->dtype = MLO_DTYPE_NONE;
    if (descr[0] == '>' && strcmp(descr + 1, "u1") != 0 && strcmp(descr + 1, "i1") != 0) {
        mlo_error_set(&out->refusal, MLO_EUNSUPPORTED, "its type '%s' is big-endian", descr);
        mlo_error_hint(&out->refusal, "convert it before saving: a.astype(a.dtype.newbyteorder('<'))");
        return;
    }
    if (descr[0] && strchr("<|>=", descr[0]))
        for (size_t i = 0; i < MLO_COUNT(npy_types); i++)
            if (strcmp(descr + 1, npy_types[i].code) == 0)
                out->dtype = npy_types[i].dtype;
    if (out->dtype != MLO_DTYPE_NONE)
        return;
    if (strstr(descr, "O")) {
        mlo_error_set(&out->refusal, MLO_EUNSUPPORTED,
                      "its type '%s' is pickled Python objects, which are never read", descr);
        mlo_error_hint(&out->refusal, "save a numeric array: numpy.asarray(a, dtype=numpy.float32)");
    } else {
        mlo_error_set(&out->refusal, MLO_EUNSUPPORTED, "its type '%s' is no supported number type", descr);
        mlo_error_hint(&out->refusal, "supported: bool, (u)int8 to (u)int64, float16, float32, float64");
    }
}

/* A structured type is a list; it is skipped by its brackets, and refused when the array is used. */
static bool skip_list(struct cursor *c)
{
    int depth = 0;
    skip_space(c);
    do {
        if (c->at == c->end)
            return false;
        depth += (*c->at == '[') - (*c->at == ']');
        c->at++;
    } while (depth > 0);
    return true;
}

static enum mlo_status parse_descr(struct cursor *c, struct mlo_npy_header *out, struct mlo_error *err)
{
    char descr[32];
    skip_space(c);
    if (c->at < c->end && *c->at == '[') {
        if (!skip_list(c))
            return mlo_error_set(err, MLO_EFORMAT, "'descr' in its .npy header does not end");
        mlo_error_set(&out->refusal, MLO_EUNSUPPORTED,
                      "it is a structured array (a table with named columns)");
        mlo_error_hint(&out->refusal, "save one plain array per column");
        return MLO_OK;
    }
    if (!take_string(c, descr, sizeof descr))
        return mlo_error_set(err, MLO_EFORMAT, "'descr' in its .npy header is not a string");
    parse_type(descr, out);
    return MLO_OK;
}

enum mlo_status mlo_npy_parse(const char *text, size_t size, struct mlo_npy_header *out,
                              struct mlo_error *err)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4, ALL = 7 };
    enum mlo_status status = MLO_OK;
    struct cursor c = {text, text + size};
    unsigned seen = 0;
    *out = (struct mlo_npy_header){0};
    if (!take(&c, '{'))
        return mlo_error_set(err, MLO_EFORMAT, "its .npy header is no dictionary");
    while (!take(&c, '}')) {
        char key[32];
        if (!take_string(&c, key, sizeof key) || !take(&c, ':'))
            return mlo_error_set(err, MLO_EFORMAT, "its .npy header is no dictionary of named fields");
        unsigned field = strcmp(key, "descr") == 0           ? DESCR
                         : strcmp(key, "fortran_order") == 0 ? ORDER
                         : strcmp(key, "shape") == 0         ? SHAPE
                                                             : 0;
        if (!field || seen & field)
            return mlo_error_set(err, MLO_EFORMAT, "its .npy header has %s field '%s'",
                                 field ? "a second" : "an unknown", key);
        seen |= field;
        if (field == DESCR) {
            MLO_TRY(parse_descr(&c, out, err));
        } else if (field == SHAPE) {
            MLO_TRY(parse_shape(&c, out, err));
        } else {
            out->fortran_order = take_word(&c, "True");
            if (!out->fortran_order && !take_word(&c, "False"))
                return mlo_error_set(err, MLO_EFORMAT,
                                     "'fortran_order' in its .npy header is no truth value");
        }
        if (!take(&c, ',')) {
            if (!take(&c, '}'))
                return mlo_error_set(err, MLO_EFORMAT, "its .npy header does not end");
            break;
        }
    }
    skip_space(&c);
    if (c.at != c.end)
        return mlo_error_set(err, MLO_EFORMAT, "its .npy header is followed by other text");
    if (seen != ALL)
        return mlo_error_set(err, MLO_EFORMAT, "its .npy header lacks one of descr, fortran_order, shape");
    if (out->rank <= 1)
        out->fortran_order = false; /* both orders are the same there */
out:
    return status;
}

enum mlo_status mlo_npy_format(enum mlo_dtype dtype, int rank, const int64_t *dims, struct mlo_buf *out,
                               struct mlo_error *err)
{
    const char *code = NULL;
    for (size_t i = 0; i < MLO_COUNT(npy_types); i++)
        if (npy_types[i].dtype == dtype)
            code = npy_types[i].code;
    if (!code)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "type %s cannot be written to an .npz file",
                             mlo_dtype_name(dtype));
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_buf_printf(&text, "{'descr': '%c%s', 'fortran_order': False, 'shape': (", code[1] == '1' ? '|' : '<',
                   code);
    for (int d = 0; d < rank; d++)
        mlo_buf_printf(&text, "%lld%s", (long long)dims[d], rank == 1 ? "," : d + 1 < rank ? ", " : "");
    mlo_buf_puts(&text, "), }");
    while ((10 + text.len + 1) % 64 != 0)
        mlo_buf_putc(&text, ' ');
    mlo_buf_putc(&text, '\n');
    const uint8_t preamble[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)text.len, (uint8_t)(text.len >> 8)};
    mlo_buf_append(out, preamble, sizeof preamble);
    mlo_buf_append(out, mlo_buf_str(&text), text.len);
    bool ok = mlo_buf_ok(&text) && mlo_buf_ok(out);
    mlo_buf_clear(&text);
    return ok ? MLO_OK : mlo_error_nomem(err);
}
