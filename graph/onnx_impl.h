/* Shared by the ONNX reader and writer only. */
#ifndef MLO_GRAPH_ONNX_IMPL_H
#define MLO_GRAPH_ONNX_IMPL_H

#include "graph/model_impl.h"
#include "graph/onnx.h"
#include "graph/onnx.pb-c.h"

struct mlo_span {
    const uint8_t *bytes;
    size_t size;
};

/* A file taken apart without unpacking: initializers, which are most of it, stay where they are. */
struct mlo_onnx_parts {
    struct mlo_buf model; /* the ModelProto without its graph */
    struct mlo_buf graph; /* the GraphProto without its initializers */
    struct mlo_span *initializers;
    size_t initializer_count, initializer_cap;
    bool has_graph;
};
void mlo_onnx_parts_clear(struct mlo_onnx_parts *parts);

/* Walks the wire format of a message without recursion: bounds nesting, checks lengths, and bounds what
 * unpacking would allocate. */
MLO_MUST_USE enum mlo_status mlo_onnx_scan(const void *bytes, size_t size,
                                           const ProtobufCMessageDescriptor *message, struct mlo_error *err);
/* After a scan: takes a model apart. */
MLO_MUST_USE enum mlo_status mlo_onnx_split(const void *bytes, size_t size, struct mlo_onnx_parts *parts,
                                            struct mlo_error *err);
/* A TensorProto without its raw_data, and where that lies. */
MLO_MUST_USE enum mlo_status mlo_onnx_split_tensor(struct mlo_span whole, struct mlo_buf *rest,
                                                   struct mlo_span *raw, struct mlo_error *err);

/* Hands the bytes of a model's message on in order, without a copy of weights; `sink` says false, with errno,
 * to stop. false: it did, or there is no memory. */
typedef bool mlo_onnx_sink_fn(void *arg, const void *bytes, size_t size);
bool mlo_onnx_pack(const Onnx__ModelProto *model, mlo_onnx_sink_fn *sink, void *arg);

/* Says what a file that is no ONNX model is, when it can be told; MLO_OK when it cannot. */
MLO_MUST_USE enum mlo_status mlo_onnx_check_foreign(const void *bytes, size_t size, const char *name,
                                                    struct mlo_error *err);

struct mlo_onnx_reader {
    struct mlo_model *model;
    const char *folder; /* for external data; NULL: there is none */
    bool borrow;        /* raw bytes may be pointed into: they live as long as the model */
};
/* Makes *out from a message; `raw` overrides raw_data (its bytes NULL: use the message's own, which are
 * copied). */
MLO_MUST_USE enum mlo_status mlo_onnx_read_tensor(const struct mlo_onnx_reader *reader,
                                                  const Onnx__TensorProto *proto, struct mlo_span raw,
                                                  struct mlo_tensor *out, struct mlo_error *err);
/* The bytes of a tensor that lie in another file, for *out, whose type and shape are set: it points into the
 * file's mapping, which the model keeps, or where alignment or a small file speak against it owns a copy. */
MLO_MUST_USE enum mlo_status mlo_onnx_read_external(const struct mlo_onnx_reader *reader,
                                                    const Onnx__TensorProto *proto, size_t expected,
                                                    struct mlo_tensor *out, struct mlo_error *err);
/* A type from its message; names are copied to the arena. */
MLO_MUST_USE enum mlo_status mlo_onnx_read_type(struct mlo_arena *arena, const Onnx__TypeProto *proto,
                                                struct mlo_type *out, struct mlo_error *err);
/* The graph with every call of a model-local function replaced by its body. *out shares what did not change
 * with `g` and lives in `arena`. Opsets that only functions import are added to the model. */
MLO_MUST_USE enum mlo_status mlo_onnx_inline(struct mlo_model *model, const Onnx__ModelProto *m,
                                             const Onnx__GraphProto *g, struct mlo_arena *arena,
                                             Onnx__GraphProto **out, struct mlo_error *err);
/* Fills an attribute from its message. Subgraphs are made by `graph_fn`. */
typedef enum mlo_status mlo_onnx_graph_fn(const struct mlo_onnx_reader *reader, const Onnx__GraphProto *proto,
                                          struct mlo_node *owner, struct mlo_graph **out,
                                          struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_onnx_read_attr(const struct mlo_onnx_reader *reader,
                                                const Onnx__AttributeProto *proto, struct mlo_node *node,
                                                mlo_onnx_graph_fn *graph_fn, struct mlo_error *err);

#endif
