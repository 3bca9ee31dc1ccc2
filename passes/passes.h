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
    MLO_OPT_INTS,
    MLO_OPT_SWITCH, /* true, false, or "auto": what other options say */
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

/* The options of equalize and smooth, and what they want observed: channels of outputs that may have high
 * biases, channels of the inputs of matrix products. Both add to `wants`, whose names are the model's. */
extern const struct mlo_option_spec mlo_equalize_options[], mlo_smooth_options[];
MLO_MUST_USE enum mlo_status mlo_equalize_wanted(const struct mlo_model *model, const json_t *options,
                                                 struct mlo_stats_wants *wants, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_smooth_wanted(const struct mlo_model *model, struct mlo_stats_wants *wants,
                                               struct mlo_error *err);

/* What correct-bias wants of a quantized model for a node; false: its bias cannot be corrected. The same of
 * the float model; the quantized model's entry must be renamed to "quantized:<value>". */
bool mlo_correct_bias_wanted(const struct mlo_node *node, struct mlo_stats_want *want);

/* Those of quantize-weights, and what it wants observed with these (resolved) options: nothing for rounding
 * to the nearest, else the Gram matrices of inputs. Adds to `wants`, whose names are the model's. */
extern const struct mlo_option_spec mlo_quantize_weights_options[];
MLO_MUST_USE enum mlo_status mlo_quantize_weights_wanted(const struct mlo_model *model, const json_t *options,
                                                         struct mlo_stats_wants *wants,
                                                         struct mlo_error *err);

/* Those of quantize-dynamic. */
extern const struct mlo_option_spec mlo_quantize_dynamic_options[];

/* The options of the pass import-qat, and of the step that exports. */
extern const struct mlo_option_spec mlo_import_qat_options[];

/* The options of the pass to-float16. */
extern const struct mlo_option_spec mlo_to_float16_options[];

/* Whether the quantize pass with these options makes integer ops (the form qoperator, by itself or the
 * target's).
 */
bool mlo_quantize_makes_integer_ops(const json_t *options);

/* What the quantize pass with these (resolved) options wants observed: names of float values, yours through
 * `arena`. */
MLO_MUST_USE enum mlo_status mlo_quantize_wanted(const struct mlo_model *model, const json_t *options,
                                                 struct mlo_arena *arena, const char ***names, size_t *count,
                                                 struct mlo_error *err);

/* The nodes that multiply and that it makes integer with these options, in the order of the graph; borrowed
 * from the model. What `exclude` can give back to float with a gain in accuracy. */
MLO_MUST_USE enum mlo_status mlo_quantize_nodes(const struct mlo_model *model, const json_t *options,
                                                struct mlo_arena *arena, const struct mlo_node ***nodes,
                                                size_t *count, struct mlo_error *err);

/* The nodes that it leaves in float since integers are too coarse for what they read (option min_sqnr), as it
 * decides from these statistics: [{"node","op","value","sqnr_db","why"}] (new reference), in the order of the
 * graph. */
MLO_MUST_USE enum mlo_status mlo_quantize_noisy(const struct mlo_model *model, const json_t *options,
                                                const struct mlo_stats *stats, json_t **out,
                                                struct mlo_error *err);

/* What a node can be given back to on the target of these options, and what a multiply-add costs there next
 * to one of float32: the cheapest first, ended by a NULL name. "float" is the option `exclude`, others are
 * options of their names. */
struct mlo_quantize_precision {
    const char *name;
    double cost;
};
const struct mlo_quantize_precision *mlo_quantize_ladder(const json_t *options);

/* What becomes of a node with these options, and why it does not run in integers: for reports. */
enum mlo_quantize_how {
    MLO_RUNS_FLOAT,
    MLO_RUNS_INTEGER,
    MLO_RUNS_FUSED, /* an activation: part of the integer node before it */
};
struct mlo_quantize_reason {
    const struct mlo_node *node; /* the model's */
    enum mlo_quantize_how how;
    const char *why; /* NULL for what runs in integers; in the arena */
};
/* One row a node of a float model, in the order of the graph. */
MLO_MUST_USE enum mlo_status mlo_quantize_explain(const struct mlo_model *model, const json_t *options,
                                                  struct mlo_arena *arena, struct mlo_quantize_reason **out,
                                                  size_t *count, struct mlo_error *err);

/* All that it wants observed, Gram matrices too; names are the model's or the arena's. */
MLO_MUST_USE enum mlo_status mlo_quantize_wants(const struct mlo_model *model, const json_t *options,
                                                struct mlo_arena *arena, struct mlo_stats_wants *wants,
                                                struct mlo_error *err);

#endif
