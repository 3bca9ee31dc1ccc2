/* The public header of passes/: graph -> graph transformations. Pure functions of (graph, options,
 * statistics): no clock, no unseeded randomness, no sum whose order depends on threads; the same input gives
 * the same bytes. Depends on base/ and graph/; never runs a model. */
#ifndef MLO_PASSES_H
#define MLO_PASSES_H

#include "graph/graph.h"

enum mlo_graph_property {
    MLO_PROP_TYPED = 1,      /* every value has a type; shapes are inferred as far as they can be */
    MLO_PROP_FOLDED = 2,     /* no node with constant inputs only is left (where it is pure) */
    MLO_PROP_NO_DEAD = 4,    /* no dead node or value */
    MLO_PROP_BN_FOLDED = 8,  /* no BatchNormalization behind a Conv or Gemm is left */
    MLO_PROP_QUANTIZED = 16, /* carries Q/DQ made by the quantize pass */
};

/* Lists (STRINGS, INTS) accept a single value too and resolve to an array; their default is comma-separated
 * text. */
enum mlo_option_type {
    MLO_OPT_BOOL,
    MLO_OPT_INT,
    MLO_OPT_FLOAT,
    MLO_OPT_STRING,
    MLO_OPT_STRINGS,
    MLO_OPT_INTS
};

/* One option of a pass or a step: what recipes may set. The defaults are text as it would stand in a recipe.
 */
struct mlo_option_spec {
    const char *name;
    enum mlo_option_type type;
    const char *fallback;       /* NULL: required */
    const char *const *choices; /* NULL-terminated; for strings; or NULL */
    double min, max;            /* for numbers, when min < max */
    const char *description;
};

/* Checks an options object against specs (terminated by a NULL name), and writes the resolved object, every
 * option present, to *resolved (yours). Errors name the option, the nearest known one for an unknown, and the
 * choices or the range. `options` may be NULL (all defaults). */
MLO_MUST_USE enum mlo_status mlo_options_resolve(const struct mlo_option_spec *specs, const json_t *options,
                                                 json_t **resolved, struct mlo_error *err);

struct mlo_pass_context {
    const json_t *options;         /* resolved */
    const struct mlo_stats *stats; /* NULL unless the pass needs statistics */
    int changes;                   /* out: how many places it changed */
    json_t *notes;                 /* array: {"node","note"}: what it left alone, and why */
};

typedef enum mlo_status mlo_pass_fn(struct mlo_model *model, struct mlo_pass_context *ctx,
                                    struct mlo_error *err);

struct mlo_pass {
    const char *name;
    mlo_pass_fn *run;
    unsigned requires, establishes, destroys; /* enum mlo_graph_property */
    bool needs_stats;
    const struct mlo_option_spec *options;
    int revision; /* bumped when its output changes; part of every derivation key */
    const char *description;
};

/* The table, and a row by name (NULL when there is none). */
const struct mlo_pass *mlo_pass_table(size_t *count);
const struct mlo_pass *mlo_pass_find(const char *name);
MLO_MUST_USE enum mlo_status mlo_pass_table_check(struct mlo_error *err);

/* One request to the driver. */
struct mlo_pass_request {
    const char *name;
    const json_t *options; /* NULL: defaults */
};
typedef void mlo_pass_dump_fn(void *arg, const char *pass, const struct mlo_model *model);

struct mlo_pass_driver {
    const struct mlo_stats *stats;
    mlo_pass_dump_fn *dump; /* after each pass; or NULL */
    void *dump_arg;
    json_t *report; /* out: array of {"pass","revision","changes","ms","notes"}; yours (json_decref) */
};
/* Runs passes in order. The driver checks what each requires (running shape inference where TYPED is
 * missing), runs it, infers and verifies the graph, and records changes and time. On failure the model is in
 * an undefined but freeable state, and the error names the pass. */
MLO_MUST_USE enum mlo_status mlo_passes_run(struct mlo_model *model, const struct mlo_pass_request *requests,
                                            size_t count, struct mlo_pass_driver *driver,
                                            struct mlo_error *err);

/* The passes that `optimize` stands for, in order (names of the table). */
const char *const *mlo_passes_optimize(size_t *count);

/* The option specs of the quantize pass, for steps that offer the same options. */
extern const struct mlo_option_spec mlo_quantize_options[];

/* What the quantize pass with these (resolved) options wants observed: names of float values, yours through
 * `arena`. */
MLO_MUST_USE enum mlo_status mlo_quantize_wanted(const struct mlo_model *model, const json_t *options,
                                                 struct mlo_arena *arena, const char ***names, size_t *count,
                                                 struct mlo_error *err);

#endif
