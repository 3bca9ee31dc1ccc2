/* The walk over the wire format that comes before unpacking. protobuf-c recurses into every message and
 * allocates a struct for each: unbounded, half a megabyte of nesting ends the stack, and ten megabytes of
 * empty messages become hundreds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/onnx_impl.h"

enum {
    MAX_DEPTH = 64,      /* three levels for every subgraph in a subgraph */
    BLOCK_OVERHEAD = 16, /* of malloc, each block */
    SCANNED_FIELD = 48,  /* protobuf-c's own record of a field, while its message is unpacked */
    EXPANSION = 20,      /* unpacked bytes allowed for each byte of the file … */
    UNKNOWN_FIELD = 32,
};
static const uint64_t expansion_base = 16u << 20; /* … and on top, so that small files are never refused */

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct level {
    const ProtobufCMessageDescriptor *message; /* NULL: the root */
    const char *field;
    size_t end;
    uint64_t seen; /* singular messages that were there already, by field index */
    uint64_t fields;
};

struct scanner {
    const uint8_t *bytes;
    size_t at;
    struct level stack[MAX_DEPTH];
    int depth;
    uint64_t kept, transient, peak;
    struct mlo_error *err;
};

struct field {
    uint32_t number;
    enum wire wire;
    size_t start, payload, size; /* of the whole field; of its content */
};

static enum mlo_status bad(struct scanner *s, size_t at, const char *what)
{
    char path[160] = "";
    size_t used = 0;
    for (int i = 0; i < s->depth && used < sizeof path; i++)
        used += (size_t)snprintf(path + used, sizeof path - used, "%s%s", i ? "." : "", s->stack[i].field);
    enum mlo_status status =
        mlo_error_set(s->err, MLO_EFORMAT, "no valid ONNX model: %s at byte %zu", what, at);
    mlo_error_where(s->err, "byte %zu, in %s", at, path);
    return status;
}

static bool varint(const uint8_t *bytes, size_t *at, size_t end, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (*at >= end)
            return false;
        uint8_t byte = bytes[(*at)++];
        value |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if (!(byte & 0x80)) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* Reads one field's tag and bounds, and stands behind it. */
static enum mlo_status next_field(struct scanner *s, size_t end, struct field *f)
{
    uint64_t tag, value;
    f->start = s->at;
    if (!varint(s->bytes, &s->at, end, &tag))
        return bad(s, f->start, "a field's tag is broken or cut off");
    f->wire = (enum wire)(tag & 7);
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
        return bad(s, f->start, "a field has an impossible number");
    f->number = (uint32_t)(tag >> 3);
    f->payload = s->at;
    switch ((int)f->wire) {
    case WIRE_VARINT:
        if (!varint(s->bytes, &s->at, end, &value))
            return bad(s, f->start, "a number is broken or cut off");
        break;
    case WIRE_64:
    case WIRE_32: {
        size_t width = f->wire == WIRE_64 ? 8 : 4;
        if (end - s->at < width)
            return bad(s, f->start, "a number is cut off");
        s->at += width;
        break;
    }
    case WIRE_BYTES: {
        char what[128];
        if (!varint(s->bytes, &s->at, end, &value))
            return bad(s, f->start, "a length is broken or cut off");
        if (value > end - s->at) {
            snprintf(what, sizeof what, "a field says that %llu bytes follow, but %zu are left",
                     (unsigned long long)value, end - s->at);
            return bad(s, f->start, what);
        }
        f->payload = s->at;
        s->at += (size_t)value;
        break;
    }
    default:
        return bad(s, f->start, "a field has an unknown wire type");
    }
    f->size = s->at - f->payload;
    return MLO_OK;
}

static enum wire wire_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_32;
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_BYTES;
    default:
        return WIRE_VARINT; /* onnx.proto has no other types */
    }
}

/* What unpacking a field will keep, apart from a message's own struct. */
static uint64_t cost(const ProtobufCFieldDescriptor *d, const struct field *f)
{
    bool repeated = d->label == PROTOBUF_C_LABEL_REPEATED;
    switch (d->type) {
    case PROTOBUF_C_TYPE_STRING:
        return f->size + 1 + BLOCK_OVERHEAD + (repeated ? sizeof(char *) : 0);
    case PROTOBUF_C_TYPE_BYTES:
        return f->size + BLOCK_OVERHEAD + (repeated ? sizeof(ProtobufCBinaryData) : 0);
    case PROTOBUF_C_TYPE_MESSAGE:
        return ((const ProtobufCMessageDescriptor *)d->descriptor)->sizeof_message + BLOCK_OVERHEAD +
               (repeated ? sizeof(void *) : 0);
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE:
        return f->size;
    default: /* a packed varint of one byte becomes a number of up to eight */
        return repeated ? (f->wire == WIRE_BYTES ? f->size : 1) * (d->type == PROTOBUF_C_TYPE_INT32 ? 4 : 8)
                        : 0;
    }
}

static enum mlo_status enter(struct scanner *s, const ProtobufCMessageDescriptor *message, unsigned index,
                             const struct field *f)
{
    struct level *level = &s->stack[s->depth - 1];
    const ProtobufCFieldDescriptor *d = &message->fields[index];
    if (d->label != PROTOBUF_C_LABEL_REPEATED) {
        if (level->seen >> index & 1)
            return bad(s, f->start, "a part that may be there once is there twice");
        level->seen |= (uint64_t)1 << index;
    }
    if (s->depth == MAX_DEPTH)
        return bad(s, f->start, "messages are nested too deeply (more than 64 levels)");
    s->stack[s->depth++] = (struct level){d->descriptor, d->name, f->payload + f->size, 0, 0};
    s->at = f->payload;
    return MLO_OK;
}

enum mlo_status mlo_onnx_scan(const void *bytes, size_t size, const ProtobufCMessageDescriptor *message,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct scanner s = {.bytes = bytes, .err = err, .depth = 1};
    uint64_t bound = expansion_base + (uint64_t)size * EXPANSION;
    s.stack[0] = (struct level){message, "the model", size, 0, 0};
    while (s.depth) {
        struct level *level = &s.stack[s.depth - 1];
        if (s.at == level->end) {
            s.transient -= level->fields * SCANNED_FIELD;
            s.depth--;
            continue;
        }
        struct field f;
        MLO_TRY(next_field(&s, level->end, &f));
        level->fields++;
        s.transient += SCANNED_FIELD;
        const ProtobufCFieldDescriptor *d = protobuf_c_message_descriptor_get_field(level->message, f.number);
        if (!d) {
            s.kept += f.size + UNKNOWN_FIELD + BLOCK_OVERHEAD;
        } else {
            bool packed = d->label == PROTOBUF_C_LABEL_REPEATED && f.wire == WIRE_BYTES;
            if (f.wire != wire_of(d->type) && !packed) {
                char what[128];
                snprintf(what, sizeof what, "field '%s' is of another kind than ONNX says", d->name);
                status = bad(&s, f.start, what);
                goto out;
            }
            s.kept += cost(d, &f);
            if (d->type == PROTOBUF_C_TYPE_MESSAGE)
                MLO_TRY(enter(&s, level->message, (unsigned)(d - level->message->fields), &f));
        }
        s.peak = MLO_MAX(s.peak, s.kept + s.transient);
        if (s.peak > bound) {
            status =
                mlo_error_set(err, MLO_ETOOBIG,
                              "the model is built to expand: %zu bytes would need more than %llu in memory",
                              size, (unsigned long long)bound);
            mlo_error_where(err, "byte %zu", f.start);
            goto out;
        }
    }
out:
    return status;
}

void mlo_onnx_parts_clear(struct mlo_onnx_parts *parts)
{
    mlo_buf_clear(&parts->model);
    mlo_buf_clear(&parts->graph);
    free(parts->initializers);
    *parts = (struct mlo_onnx_parts){0};
}

static bool add_initializer(struct mlo_onnx_parts *parts, struct mlo_span span)
{
    if (parts->initializer_count == parts->initializer_cap) {
        size_t cap = parts->initializer_cap ? parts->initializer_cap * 2 : 64;
        struct mlo_span *grown = realloc(parts->initializers, cap * sizeof *grown);
        if (!grown)
            return false;
        parts->initializers = grown;
        parts->initializer_cap = cap;
    }
    parts->initializers[parts->initializer_count++] = span;
    return true;
}

enum mlo_status mlo_onnx_split(const void *bytes, size_t size, struct mlo_onnx_parts *parts,
                               struct mlo_error *err)
{
    enum { MODEL_GRAPH = 7, GRAPH_INITIALIZER = 5 };
    enum mlo_status status = MLO_OK;
    struct scanner s = {.bytes = bytes, .err = err};
    struct field f = {0}, graph = {0};
    while (s.at < size) {
        MLO_TRY(next_field(&s, size, &f));
        if (f.number != MODEL_GRAPH) {
            mlo_buf_append(&parts->model, s.bytes + f.start, s.at - f.start);
            continue;
        }
        graph = f;
        parts->has_graph = true;
    }
    s.at = graph.payload;
    while (parts->has_graph && s.at < graph.payload + graph.size) {
        MLO_TRY(next_field(&s, graph.payload + graph.size, &f));
        if (f.number != GRAPH_INITIALIZER)
            mlo_buf_append(&parts->graph, s.bytes + f.start, s.at - f.start);
        else if (!add_initializer(parts, (struct mlo_span){s.bytes + f.payload, f.size}))
            return mlo_error_nomem(err);
    }
    if (!mlo_buf_ok(&parts->model) || !mlo_buf_ok(&parts->graph))
        status = mlo_error_nomem(err);
out:
    return status;
}

enum mlo_status mlo_onnx_split_tensor(struct mlo_span whole, struct mlo_buf *rest, struct mlo_span *raw,
                                      struct mlo_error *err)
{
    enum { TENSOR_RAW_DATA = 9 };
    enum mlo_status status = MLO_OK;
    struct scanner s = {.bytes = whole.bytes, .err = err};
    struct field f;
    *raw = (struct mlo_span){0};
    while (s.at < whole.size) {
        MLO_TRY(next_field(&s, whole.size, &f));
        if (f.number == TENSOR_RAW_DATA)
            *raw = (struct mlo_span){whole.bytes + f.payload, f.size};
        else
            mlo_buf_append(rest, whole.bytes + f.start, s.at - f.start);
    }
    if (!mlo_buf_ok(rest))
        status = mlo_error_nomem(err);
out:
    return status;
}
