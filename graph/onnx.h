/* ONNX files in and out. Before unpacking, a scan bounds depth and size, so that hostile files cannot make
 * the reader recurse or expand without limit. */
#ifndef MLO_GRAPH_ONNX_H
#define MLO_GRAPH_ONNX_H

#include "graph/model.h"

/* Reads a model. `path` may be any file: a truncated or foreign one is MLO_EFORMAT with what was found;
 * PyTorch, TensorFlow, Keras and safetensors files are recognised and the hint holds the export command.
 * Types and shapes are inferred when every op is known (check with mlo_graph_check_supported).
 * Initializers stay in the file mapping where alignment allows. External data is mapped from
 * beside the file, where alignment allows; a location outside its folder is refused. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_onnx_load(const char *path, struct mlo_model **out, struct mlo_error *err);
/* The same from memory; `name` stands for the path in errors. The bytes are copied as needed. */
MLO_MUST_USE enum mlo_status mlo_onnx_parse(const void *bytes, size_t size, const char *name,
                                            struct mlo_model **out, struct mlo_error *err);

/* Serialises: deterministic bytes for equal models. Appends to out. */
MLO_MUST_USE enum mlo_status mlo_onnx_serialize(const struct mlo_model *model, struct mlo_buf *out,
                                                struct mlo_error *err);
struct mlo_onnx_save_options {
    bool external;          /* weights go to a second file in any case; else when one file cannot hold them */
    size_t threshold_bytes; /* smaller initializers stay in the model; 0: 1024 */
    uint64_t limit_bytes;   /* of weights in one file; 0: what ONNX allows, nearly 2 GiB */
};
/* The same, with a second file "<name>-<digest>.data" beside it where needed. Offsets there are multiples of
 * 4096. The data is written first, under a name that its content gives, so the model is whole at any moment;
 * a data file that an earlier model of that name used stays. */
MLO_MUST_USE enum mlo_status mlo_onnx_save_with(const struct mlo_model *model, const char *path,
                                                const struct mlo_onnx_save_options *options,
                                                struct mlo_error *err);
/* MLO_ETOOBIG when the weights alone are more than one file can hold: known before any work is done. */
MLO_MUST_USE enum mlo_status mlo_onnx_check_one_file(const struct mlo_model *model, struct mlo_error *err);
/* Serialises to one file, atomically; MLO_ETOOBIG when it cannot hold the model. */
MLO_MUST_USE enum mlo_status mlo_onnx_save(const struct mlo_model *model, const char *path,
                                           struct mlo_error *err);

#endif
