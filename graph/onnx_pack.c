/* A model's message as bytes, piece by piece: the same that protobuf-c makes in one, but no weight is copied
 * on its way to the file. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "graph/onnx_impl.h"

enum {
    WHOLE = 1 << 16, /* what is smaller goes through a buffer */
    LENGTH_PREFIXED = 2,
    /* field numbers of onnx.proto */
    MODEL_GRAPH = 7,
    GRAPH_NODE = 1,
    GRAPH_INITIALIZER = 5,
    TENSOR_RAW_DATA = 9,
};

struct packer {
    mlo_onnx_sink_fn *sink;
    void *arg;
    struct mlo_buf small; /* what has not been handed on */
};

static bool flush(struct packer *p)
{
    bool ok = !p->small.len || p->sink(p->arg, p->small.data, p->small.len);
    mlo_buf_reset(&p->small);
    return ok;
}

static bool flush_when_full(struct packer *p)
{
    return p->small.len < WHOLE || flush(p);
}

/* The key of a field that is prefixed by its length, and the length. */
static void put_prefix(struct packer *p, unsigned field, size_t length)
{
    uint8_t bytes[16];
    size_t n = 0;
    bytes[n++] = (uint8_t)(field << 3 | LENGTH_PREFIXED); /* all of them are below 16 */
    for (; length >= 0x80; length >>= 7)
        bytes[n++] = (uint8_t)(length | 0x80);
    bytes[n++] = (uint8_t)length;
    mlo_buf_append(&p->small, (const char *)bytes, n);
}

static bool put_message(struct packer *p, const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    if (!mlo_buf_reserve(&p->small, size))
        return false;
    p->small.len += protobuf_c_message_pack(message, (uint8_t *)p->small.data + p->small.len);
    p->small.data[p->small.len] = '\0';
    return flush_when_full(p);
}

static void leave_out(uint8_t *message, const ProtobufCFieldDescriptor *f)
{
    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        *(size_t *)(void *)(message + f->quantifier_offset) = 0;
    else if (f->type == PROTOBUF_C_TYPE_STRING || f->type == PROTOBUF_C_TYPE_MESSAGE)
        *(void **)(void *)(message + f->offset) = NULL;
    else
        *(protobuf_c_boolean *)(void *)(message + f->quantifier_offset) = 0;
}

/* The fields of a message from `first` to `last`; unknown ones stand behind all others. Of messages without
 * oneof only. */
static bool put_fields(struct packer *p, const ProtobufCMessage *message, unsigned first, unsigned last)
{
    const ProtobufCMessageDescriptor *d = message->descriptor;
    ProtobufCMessage *part = malloc(d->sizeof_message);
    if (!part)
        return false;
    memcpy(part, message, d->sizeof_message);
    for (unsigned i = 0; i < d->n_fields; i++)
        if (d->fields[i].id < first || d->fields[i].id > last)
            leave_out((uint8_t *)part, &d->fields[i]);
    if (last != UINT_MAX)
        part->n_unknown_fields = 0;
    bool ok = put_message(p, part);
    free(part);
    return ok;
}

static bool put_tensor(struct packer *p, const Onnx__TensorProto *t)
{
    put_prefix(p, GRAPH_INITIALIZER, protobuf_c_message_get_packed_size(&t->base));
    if (!t->has_raw_data || t->raw_data.len < WHOLE)
        return put_message(p, &t->base);
    if (!put_fields(p, &t->base, 0, TENSOR_RAW_DATA - 1))
        return false;
    put_prefix(p, TENSOR_RAW_DATA, t->raw_data.len);
    return flush(p) && p->sink(p->arg, t->raw_data.data, t->raw_data.len) &&
           put_fields(p, &t->base, TENSOR_RAW_DATA + 1, UINT_MAX);
}

static bool put_graph(struct packer *p, const Onnx__GraphProto *g)
{
    bool ok = true;
    put_prefix(p, MODEL_GRAPH, protobuf_c_message_get_packed_size(&g->base));
    for (size_t i = 0; ok && i < g->n_node; i++) {
        put_prefix(p, GRAPH_NODE, protobuf_c_message_get_packed_size(&g->node[i]->base));
        ok = put_message(p, &g->node[i]->base);
    }
    ok = ok && put_fields(p, &g->base, GRAPH_NODE + 1, GRAPH_INITIALIZER - 1);
    for (size_t i = 0; ok && i < g->n_initializer; i++)
        ok = put_tensor(p, g->initializer[i]);
    return ok && put_fields(p, &g->base, GRAPH_INITIALIZER + 1, UINT_MAX);
}

bool mlo_onnx_pack(const Onnx__ModelProto *model, mlo_onnx_sink_fn *sink, void *arg)
{
    struct packer p = {.sink = sink, .arg = arg, .small = MLO_BUF_INIT};
    bool ok = put_fields(&p, &model->base, 0, MODEL_GRAPH - 1) &&
              (!model->graph || put_graph(&p, model->graph)) &&
              put_fields(&p, &model->base, MODEL_GRAPH + 1, UINT_MAX) && mlo_buf_ok(&p.small) && flush(&p);
    mlo_buf_clear(&p.small);
    return ok;
}
