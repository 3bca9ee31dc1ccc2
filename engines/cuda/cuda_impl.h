/* Private to engines/cuda: what a graph becomes before it meets a GPU. Lowering (plan/) turns a bound graph
 * into steps that read and write slots of device memory; kernels/ turns own steps into CUDA C; device/ gives
 * steps to NVRTC, cuDNN, cuBLASLt and the driver. plan/ and kernels/ need nothing of CUDA, neither headers
 * nor libraries, and are built and tested on every machine. */
#ifndef MLO_ENGINES_CUDA_IMPL_H
#define MLO_ENGINES_CUDA_IMPL_H

#include "base/embed.h"
#include "engines/engines_impl.h"

enum { CUDA_RANK = 6, CUDA_STEP_SLOTS = 12 };

/* How a value lies in memory: logical dims in the graph's order, strides in elements. */
struct cuda_tensor {
    enum mlo_dtype dtype;
    int rank;
    int64_t dims[CUDA_RANK], strides[CUDA_RANK];
};

enum cuda_slot_kind {
    CUDA_SLOT_ARENA, /* a range of the program's arena */
    CUDA_SLOT_INPUT, /* copied from the caller before the steps */
    CUDA_SLOT_CONST, /* uploaded once by load */
};

struct cuda_slot {
    enum cuda_slot_kind kind;
    size_t size_bytes;
    const void *data; /* CONST: host bytes */
    bool owned;       /* CONST: freed with the plan */
    int input;        /* INPUT: index */
    int first, last;  /* steps that write it first and read it last */
    int root;     /* the slot whose range it shares (itself, one that a step replaces, or a part's whole) */
    bool is_part; /* a part of root, `part_bytes` from its beginning: kind is root's. Who writes the parts
                     of a slot writes the slot */
    size_t part_bytes;
    size_t
        offset; /* from the beginning of the arena (ARENA, INPUT) or of the constants; 256 aligned but for
                   parts, which are aligned to their elements, and to 16 bytes where a library reads them */
};

enum cuda_activation {
    CUDA_ACT_NONE,
    CUDA_ACT_RELU,
    CUDA_ACT_CLIP,
    CUDA_ACT_SIGMOID,
    CUDA_ACT_TANH,
    CUDA_ACT_GELU,
    CUDA_ACT_GELU_TANH,
    CUDA_ACT_SWISH
};

/* y = activation(scale * conv(x, w) + residual + bias): in this order, which cuDNN's precompiled engines
 * want. x and y channels last (N, C, H, W logical, strides say so); w is K, C/groups, R, S logical, channels
 * last. Slots: in x, w, then as the flags say residual, bias (float32 or the type of y, K), scale (float32,
 * K); out y. int8: x, w int8, sums int32, scale brings them to y's type (float16, float32, or int8 after
 * division by its own scale, which is folded in). */
struct cuda_conv {
    struct cuda_tensor x, w, y, residual;
    int spatial; /* 1, 2 or 3 */
    int64_t pad_before[3], pad_after[3], stride[3], dilation[3], groups;
    bool has_residual, has_bias, has_scale;
    float residual_scale; /* of an int8 residual to the unit of y; 1 else */
    enum cuda_activation activation;
    float low, high; /* CLIP */
};

/* d = activation(alpha * op(a) op(b) + bias + c), `batch` times. Row-major: a is m x k (k x m when ta), b is
 * k x n (n x k when tb), c and d are m x n; leading dimensions and batch strides in elements (0: the same for
 * all). Slots: in a, b, then as the flags say c (residual), bias (n, in d's type), scale (float32, n or 1: of
 * int32 sums); out d. */
struct cuda_gemm {
    int64_t m, n, k, batch;
    bool ta, tb;
    int64_t lda, ldb, ldc, ldd, batch_a, batch_b, batch_c, batch_d;
    enum mlo_dtype a, b, c, d;
    float alpha;
    bool has_c, has_bias, has_scale;
    bool scale_per_column;
    enum cuda_activation activation;
};

/* o = softmax(scale * q k^T + mask) v over heads; each operand (batch, head, position, feature) with its own
 * strides. mask: additive, in q's type or float32, broadcast by strides of 0. Slots: in q, k, v, [mask]; out
 * o. */
struct cuda_attention {
    struct cuda_tensor q, k, v, o, mask;
    bool has_mask, causal;
    float scale;
};

/* A chain of elementwise operations over a common (broadcast) index space, computed in float32, with at most
 * one reduction over the innermost `reduced` dimensions whose result is broadcast back to what follows (so
 * that softmax, LayerNormalization and mean/variance are chains too). Operand i is in slot in[i] with
 * strides of the index space (0: broadcast); results likewise. What is loaded becomes float32 (booleans 0 or
 * 1); what is stored is rounded to nearest even in float types; in integers it is cut off towards zero and
 * saturated, NaN gives 0; in booleans it is whether it differs from 0. */
enum cuda_chain_op {
    CUDA_OP_LOAD,     /* operand a */
    CUDA_OP_CONSTANT, /* alpha */
    CUDA_OP_INDEX,    /* the position along dimension a */
    CUDA_OP_UNARY, /* function `math` (enum cuda_math) of register a, with alpha and beta where it has them */
    CUDA_OP_ADD,
    CUDA_OP_SUB,
    CUDA_OP_MUL,
    CUDA_OP_DIV,
    CUDA_OP_POW,
    CUDA_OP_MIN,
    CUDA_OP_MAX,
    CUDA_OP_MOD,
    CUDA_OP_LESS,
    CUDA_OP_EQUAL,
    CUDA_OP_AND,
    CUDA_OP_OR,
    CUDA_OP_NOT,
    CUDA_OP_SELECT,     /* a ? b : c */
    CUDA_OP_QUANTIZE,   /* saturate(round_half_even(a / alpha) + beta) to [low, high]; NaN gives beta */
    CUDA_OP_DEQUANTIZE, /* (a - beta) * alpha */
    CUDA_OP_SUM,
    CUDA_OP_PRODUCT,
    CUDA_OP_REDUCE_MAX,
    CUDA_OP_REDUCE_MIN, /* of a over the reduced dimensions */
    /* Operand a as an exact 64-bit integer. Arithmetic, comparisons, SELECT and reductions of integer
     * registers stay integers (wrapping; DIV and MOD by 0 give 0); with a float register they become float32,
     * but an integral CONSTANT joins either side. INDEX, LESS, EQUAL, AND, OR and NOT give integers. */
    CUDA_OP_LOAD_INTEGER,
    CUDA_OP_CAST, /* a as if stored in type b (enum mlo_dtype) and loaded again, exactly where it is an
                     integer */
    CUDA_CHAIN_OPS
};
enum cuda_math {
    CUDA_MATH_ABS,
    CUDA_MATH_NEG,
    CUDA_MATH_EXP,
    CUDA_MATH_LOG,
    CUDA_MATH_SQRT,
    CUDA_MATH_RECIPROCAL,
    CUDA_MATH_ERF,
    CUDA_MATH_TANH,
    CUDA_MATH_SIGMOID,
    CUDA_MATH_RELU,
    CUDA_MATH_LEAKY_RELU,
    CUDA_MATH_ELU,
    CUDA_MATH_HARD_SIGMOID,
    CUDA_MATH_HARD_SWISH,
    CUDA_MATH_GELU,
    CUDA_MATH_SOFTPLUS,
    CUDA_MATH_FLOOR,
    CUDA_MATH_CEIL,
    CUDA_MATH_ROUND,
    CUDA_MATH_SIN,
    CUDA_MATH_COS,
    CUDA_MATH_SIGN,
    CUDA_MATH_TAN,
    CUDA_MATH_GELU_TANH,
    CUDA_MATH_SWISH, /* a * sigmoid(alpha * a); alpha 0: 1 */
    CUDA_MATH_MISH,
    CUDA_MATH_SOFTSIGN,
    CUDA_MATH_SELU, /* beta * elu(a, alpha) */
    CUDA_MATH_CELU,
    CUDA_MATH_THRESHOLDED_RELU,
    CUDA_MATH_CLIP, /* to [alpha, beta]; keeps NaN */
    CUDA_MATH_ISNAN,
    CUDA_MATH_ISINF,
    CUDA_MATHS
};
enum { CUDA_CHAIN_REGISTERS = 64, CUDA_CHAIN_OPERANDS = 10 };
struct cuda_chain_instruction {
    enum cuda_chain_op op;
    enum cuda_math math;
    int a, b, c;
    float alpha, beta, low, high;
};
struct cuda_chain {
    int rank, reduced; /* of the index space; its last `reduced` dims are reduced */
    int64_t dims[CUDA_RANK];
    int count;
    struct cuda_chain_instruction code[CUDA_CHAIN_REGISTERS]; /* instruction i computes register i */
    int operand_count, result_count;
    struct cuda_operand {
        enum mlo_dtype dtype;
        int64_t strides[CUDA_RANK];
        int64_t offset;  /* elements from the slot's beginning to index 0 */
        int align_bytes; /* of the slot; 0: 16 or more. cuda_step_source sets it */
        int reg; /* of a result: the register it stores. A register that is constant over the reduced dims may
                    be stored with strides 0 there (once) */
    } operands[CUDA_CHAIN_OPERANDS], results[4];
};

/* An own kernel with a fixed body: a row of the table in kernels/, and numbers that are baked into its text.
 */
struct cuda_kernel;
enum { CUDA_KERNEL_NUMBERS = 32 };
struct cuda_kernel_use {
    const struct cuda_kernel *kernel;
    int64_t n[CUDA_KERNEL_NUMBERS]; /* what the row says they mean */
    float f[8];
    enum mlo_dtype types[4];
    int align_bytes; /* of its slots; 0: 16 or more. cuda_step_source sets it */
};

enum cuda_step_kind {
    CUDA_STEP_CHAIN,
    CUDA_STEP_KERNEL,
    CUDA_STEP_CONV,
    CUDA_STEP_ATTENTION,
    CUDA_STEP_GEMM,
    CUDA_STEP_COPY /* of size_bytes, slot to slot */
};

struct cuda_step {
    enum cuda_step_kind kind;
    const struct mlo_node *node;
    const char *impl;      /* for describe: "cudnn conv", "cublasLt", "chain", the kernel's name */
    const char *precision; /* "int8", "f16", "tf32", "f32", … */
    const char **fused;    /* names of further nodes that this step computes */
    int fused_count;
    int in[CUDA_STEP_SLOTS], out[CUDA_STEP_SLOTS]; /* slots, in the order that the kind says */
    int in_count, out_count;
    int replaces; /* index into in[]: out[0] may lie where that slot ends its life; -1: none */
    double ops; /* arithmetic operations of a restored chain or own kernel, of which only the image is left */
    union {
        struct cuda_chain *chain;       /* NULL: restored */
        struct cuda_kernel_use *kernel; /* NULL: restored */
        struct cuda_conv *conv;
        struct cuda_attention *attention;
        struct cuda_gemm *gemm;
        size_t copy_bytes;
    };
};

/* The lowered graph: all that is known without a GPU. */
struct cuda_schedule {
    struct mlo_model *model; /* bound; ours */
    struct mlo_arena *arena; /* of everything below but the constants that are owned */
    struct cuda_slot *slots;
    int slot_count, slot_cap;
    struct cuda_step *steps;
    int step_count, step_cap;
    int *input_slots, *output_slots; /* by the model's inputs and outputs */
    struct cuda_tensor *output_tensors;
    int *observed_slots;
    struct cuda_tensor *observed_tensors;
    int observed_count;
    size_t arena_bytes, constant_bytes;
};

/* --- plan/ ---------------------------------------------------------------------------------------------- */

/* Lowers and lays out memory. `sm` is the compute capability (90 for cuda:sm90). MLO_EUNSUPPORTED names the
 * first node that nothing can compute, and why. *out is yours. */
MLO_MUST_USE enum mlo_status cuda_schedule_new(const struct mlo_model *model,
                                               const struct mlo_compile_options *o, int sm,
                                               struct cuda_schedule **out, struct mlo_error *err);
void cuda_schedule_free(struct cuda_schedule *schedule); /* NULL is fine */
/* The largest sum of slots alive at the same time: no arena is smaller. */
size_t cuda_memory_bound(const struct cuda_schedule *schedule);
/* Whether a schedule's memory is right: no two live slots overlap, all that is read was written before, and
 * each slot lies inside its memory. MLO_EINTERNAL says what does not. */
MLO_MUST_USE enum mlo_status cuda_memory_verify(const struct cuda_schedule *schedule, struct mlo_error *err);
/* A stable text form: a line a step with its kind, shapes and what it computes, and sums at the end. */
void cuda_schedule_dump(const struct cuda_schedule *schedule, struct mlo_buf *out);

/* gemm.c: whether cuBLASLt computes the product with everything that the struct says. What it does not is an
 * own kernel, which has no tensor cores: lowering makes products that fuse (int8: plain int32 sums, with a
 * chain behind them). */
bool cuda_gemm_fuses(const struct cuda_gemm *gemm);

/* --- kernels/ ------------------------------------------------------------------------------------------- */

/* CUDA C of one step, whole: every number of its shape is in the text, so that its parameters are only
 * pointers, those of step->in and then those of step->out. Grid and block follow from the shape. */
struct cuda_source {
    char *text;
    char entry[64];
    unsigned grid[3], block[3], shared_bytes; /* shared: dynamic */
    unsigned register_budget;                 /* per thread; a test holds the compiled kernel to it */
};
MLO_MUST_USE enum mlo_status cuda_chain_source(const struct cuda_chain *chain, struct cuda_source *out,
                                               struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_kernel_source(const struct cuda_kernel_use *use, struct cuda_source *out,
                                                struct mlo_error *err);
void cuda_source_clear(struct cuda_source *source);
/* Of a step of the schedule, whose slots have their places: as above, for what these may be aligned to. A
 * convolution, product or attention gives the kernel that computes the same without a library. */
MLO_MUST_USE enum mlo_status cuda_step_source(const struct cuda_schedule *schedule,
                                              const struct cuda_step *step, struct cuda_source *out,
                                              struct mlo_error *err);
/* The .inc files of kernels/, by name. */
extern const struct mlo_embedded_file cuda_kernel_texts[];
extern const size_t cuda_kernel_texts_count;
/* A row of the table by name; NULL when there is none. */
const struct cuda_kernel *cuda_kernel_find(const char *name);

#endif
