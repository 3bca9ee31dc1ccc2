/* Private to engines/cpu: plans, slots and steps. Lowering turns a bound graph into a list of steps that read
 * and write slots; a slot is memory without a shape, so a view of a value is the same slot. */
#ifndef MLO_ENGINES_CPU_IMPL_H
#define MLO_ENGINES_CPU_IMPL_H

#include "engines/engines_impl.h"

struct cpu_step;
struct cpu_writer;
struct cpu_reader;

enum cpu_slot_kind {
    CPU_SLOT_ARENA,  /* a range of the program's arena */
    CPU_SLOT_INPUT,  /* the caller's tensor */
    CPU_SLOT_CONST,  /* memory of the plan: an initializer or packed weights */
    CPU_SLOT_TENSOR, /* a tensor made by a reference kernel: may have a shape that is known at run only */
};

struct cpu_slot {
    enum cpu_slot_kind kind;
    size_t size_bytes;
    const void *data;            /* CONST */
    bool owned;                  /* CONST: freed with the plan */
    struct mlo_constant *shared; /* CONST: whose data it is, released with the plan; or NULL */
    int input;                   /* INPUT: index */
    int first, last;             /* steps that write it first and read it last */
    int root;      /* ARENA: the slot whose range it shares (itself, or a residual summed in place) */
    size_t offset; /* ARENA */
};

/* How products of models in float16 are computed. */
enum cpu_half {
    CPU_HALF_NONE,     /* in float32 */
    CPU_HALF_NATIVE,   /* by AVX512-FP16 */
    CPU_HALF_EMULATED, /* to the same bits, without such a CPU */
    CPU_HALF_FIXED,    /* in 16-bit fixed point (fast/tile_fixed_impl.h) */
};
const char *cpu_half_name(enum cpu_half half); /* "no", "native", "emulated", "fixed-point" */
/* What a plan of the fast numerics that is made or restored now has: fixed point where that is fast, or what
 * MLOPT_FP16 asks for. Native only where the CPU has the instructions and, asked at first use, they compute
 * what they must. */
enum cpu_half cpu_half_current(void);

/* What a value is at run: bytes in row-major order, or channels last for rank 3 to 5. */
enum cpu_layout { CPU_PLAIN, CPU_LAST, CPU_LAYOUTS };

/* How a step runs. State made by load belongs to one program; step->data to the plan. */
struct cpu_step_class {
    const char *name;
    enum mlo_status (*load)(struct mlo_program *program, const struct cpu_step *step, void **state,
                            struct mlo_error *err); /* or NULL */
    enum mlo_status (*run)(struct mlo_program *program, const struct cpu_step *step, void *state,
                           struct mlo_error *err);
    /* begins_as is only the place where the result may go: the step reads each element of it before it writes
     * the one there. */
    bool replaces;
    void (*unload)(void *state);   /* or NULL */
    void (*free_data)(void *data); /* or NULL */
    /* For plans as files (image_impl.h): what the class is called there, and a row in classes.c. save writes
     * what restore needs to make step->data again (both NULL: there is none); restore gets a step whose slots
     * are there, and checks them and all that it reads as if it were hostile. No id: the step cannot be
     * saved. */
    const char *id;
    enum mlo_status (*save)(const struct mlo_plan *plan, const struct cpu_step *step,
                            struct cpu_writer *writer, struct mlo_error *err);
    enum mlo_status (*restore)(struct mlo_plan *plan, struct cpu_step *step, struct cpu_reader *reader,
                               struct mlo_error *err);
};

struct cpu_step {
    const struct cpu_step_class *cls;
    const struct mlo_node *node;
    const char *impl;      /* lives as long as the plan */
    const char *precision; /* "int8", "f32", … */
    const char **fused;    /* names of further nodes this step computes */
    int fused_count;
    int *in, *out; /* slots; -1: none */
    int in_count, out_count;
    int begins_as; /* slot whose content out[0] starts with (a residual); -1: none */
    void *data;
};

/* Constant parameters of a per-tensor quantization. */
struct cpu_qparams {
    float scale;
    int32_t zero_point;
    enum mlo_dtype dtype; /* MLO_UINT8 or MLO_INT8 */
};

/* Where a value's content is. A float value may also be known as quantized bytes that stand for it exactly.
 */
struct cpu_value {
    int slot[CPU_LAYOUTS];
    int qslot[CPU_LAYOUTS];
    struct cpu_qparams q; /* of qslot */
};

struct mlo_plan {
    struct mlo_model *model; /* bound; ours */
    struct mlo_arena *arena; /* of everything below but slot and step data */
    enum mlo_numerics numerics;
    enum mlo_isa isa;
    enum cpu_half half; /* of the fast numerics; once made: NONE where it has no such product */
    bool has_half;      /* while lowering: a product in FP16 was emitted */
    unsigned threads;
    int64_t batch;
    struct mlo_constants *constants; /* of the session it belongs to, or NULL */
    struct mlo_value **inputs, **observed;
    int input_count;
    size_t observed_count;
    enum mlo_dtype *stored; /* by value index: the 16-bit type that the model has for it; NONE: another */
    int stored_count;
    struct cpu_value *values; /* by value index */
    bool *done;               /* by node, while lowering: computed by an earlier step */
    const void **ahead;       /* by node, while lowering: what it begins, found by looking ahead; or NULL */
    struct cpu_slot *slots;
    int slot_count, slot_cap;
    struct cpu_step *steps;
    int step_count, step_cap;
    int *output_slots, *observed_slots;
    int *observed_behind; /* the step that makes an observed value whole; -1: it is there before the first */
    size_t arena_bytes, scratch_bytes;
    /* What the products of a run take one thread, about, besides reading and writing; of the fast numerics.
     */
    size_t product_cycles;
};

struct mlo_program {
    struct mlo_plan *plan;
    char *arena, *scratch;
    void **at;                  /* by slot: where it is now */
    struct mlo_tensor *tensors; /* by slot, for CPU_SLOT_TENSOR */
    void **states;              /* by step */
    struct mlo_pool *pool;
    void *stream;      /* dnnl_stream_t, for the fast numerics */
    uint64_t *step_ns; /* by step: where a profiled run notes its times; else NULL */
};

/* --- plan.c: building ----------------------------------------------------------------------------- */

/* New slots; negative: out of memory. */
int cpu_slot_new(struct mlo_plan *plan, enum cpu_slot_kind kind, size_t size_bytes);
int cpu_slot_const(struct mlo_plan *plan, const void *data, size_t size_bytes);
int cpu_slot_const_take(struct mlo_plan *plan, void *data, size_t size_bytes);
/* What a packed constant is: plans of one session have those with equal keys in common. */
struct cpu_const_key {
    const char *kind; /* who packs, in which format: "onednn", "tile f32" */
    const void
        *source; /* what is packed; an initializer that plans share is known by its address, else its */
    size_t source_bytes; /* bytes are hashed */
    const void *params;  /* how: all that decides the result besides the source. No padding with garbage */
    size_t params_bytes;
};
/* A slot with the constant of that key; `make` fills its memory (zeroed, 64-byte aligned) unless a plan of
 * the session has it already. Without a session it is made, and freed with the plan. Negative: out of memory
 * or make failed. */
int cpu_shared_const(struct mlo_plan *plan, const struct cpu_const_key *key, size_t size_bytes,
                     mlo_make_constant_fn *make, void *arg);
/* A zeroed step behind the others with room for slots (all -1); NULL: out of memory. Valid until the next. */
struct cpu_step *cpu_step_new(struct mlo_plan *plan, const struct cpu_step_class *cls,
                              const struct mlo_node *node, int in_count, int out_count);
bool cpu_step_fuse(struct mlo_plan *plan, struct cpu_step *step, const struct mlo_node *node);
/* The value's slot in row-major order, which exists already. -1: it has none (a lowering is wrong). */
int cpu_value_plain(const struct mlo_plan *plan, const struct mlo_value *value);
/* The step that interprets a node by its op-table row. Its inputs must be there in row-major order. */
MLO_MUST_USE enum mlo_status cpu_lower_eval(struct mlo_plan *plan, const struct mlo_node *node,
                                            struct mlo_error *err);
bool cpu_is_observed(const struct mlo_plan *plan, const struct mlo_value *value);
/* Lifetimes, in-place sharing and offsets, after all steps are there. */
void cpu_plan_memory(struct mlo_plan *plan);
void cpu_plan_lifetimes(struct mlo_plan *plan); /* the first of them */
void cpu_plan_free(struct mlo_plan *plan);      /* NULL is fine */
/* 64-byte aligned, zeroed memory (free). */
void *cpu_aligned(size_t size_bytes);
/* Bytes and elements of a value's static type; false when it is not static. */
bool cpu_value_bytes(const struct mlo_value *value, size_t *bytes);
bool cpu_value_dims(const struct mlo_value *value, int64_t dims[MLO_MAX_RANK], size_t *count);

/* --- lowering ------------------------------------------------------------------------------------- */

/* Rewrites the plan's copy of the model so that what lowers it sees one form of each thing; what is observed
 * (plan->observed) stays. */
MLO_MUST_USE enum mlo_status cpu_fast_normalise(struct mlo_plan *plan, struct mlo_error *err);
/* Emits the steps of the whole graph, and sets output_slots and observed_slots. */
MLO_MUST_USE enum mlo_status cpu_fast_lower(struct mlo_plan *plan, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cpu_invariant_lower(struct mlo_plan *plan, struct mlo_error *err);
/* Called once before oneDNN is used first: limits its instruction set to mlo_isa_current. */
void cpu_fast_init(void);
MLO_MUST_USE enum mlo_status cpu_fast_load(struct mlo_program *program, struct mlo_error *err);
void cpu_fast_unload(struct mlo_program *program);
/* Around all that makes or runs oneDNN primitives, on the caller's thread: each of them works on one thread,
 * since a second team of threads (OpenMP's) beside the program's pool costs more than it gains: nets go to
 * and fro between the two in every layer. */
int cpu_fast_enter(void);
void cpu_fast_leave(int token);
const char *cpu_fast_version(void);
/* A digest of this engine's sources, made when they are compiled: what is in a plan's file is private to
 * them. */
extern const char cpu_source_revision[];

#endif
