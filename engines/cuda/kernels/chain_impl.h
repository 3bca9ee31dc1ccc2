/* Private to the generator of chains. */
#ifndef MLO_ENGINES_CUDA_CHAIN_IMPL_H
#define MLO_ENGINES_CUDA_CHAIN_IMPL_H

#include "engines/cuda/kernels/kernels_impl.h"

enum { CHAIN_TENSORS = CUDA_CHAIN_OPERANDS + 4 };

/* What a register holds. */
enum chain_kind { CHAIN_FLOAT, CHAIN_WHOLE, CHAIN_EITHER /* a constant */ };

/* A chain made ready for its text: dims of one element dropped, the others sorted by how they lie in memory
 * and joined where they lie one behind the other; those that are reduced last. */
struct chain_form {
    const struct cuda_chain *chain;
    int kept, rank; /* dims 0 … kept-1 are kept */
    int64_t dims[CUDA_RANK];
    int64_t strides[CHAIN_TENSORS][CUDA_RANK]; /* operands, then results */
    int index_dim[CUDA_RANK];                  /* where an original dim is; -1: dropped */
    int64_t rows, length;                      /* products of the kept and of the reduced dims */
    bool reduces;
    int tensors;
    int vector;                   /* elements of the innermost dim that a thread takes at once */
    bool vectored[CHAIN_TENSORS]; /* as one pack; else one element for all (a stride of 0) */
    enum chain_kind kind[CUDA_CHAIN_REGISTERS];
    bool varies[CUDA_CHAIN_REGISTERS]; /* over the reduced dims */
    int level[CUDA_CHAIN_REGISTERS];   /* how many rounds of reductions come before it */
    bool used[CUDA_CHAIN_REGISTERS];
    int rounds;
};
MLO_MUST_USE enum mlo_status chain_form_init(struct chain_form *f, const struct cuda_chain *chain,
                                             struct mlo_error *err);
const struct cuda_operand *chain_tensor(const struct cuda_chain *chain, int i);
/* The right-hand side of one register. `name` gives the text of a register, by kind. */
typedef void chain_name_fn(struct mlo_buf *b, const void *arg, int reg);
void chain_expression(struct mlo_buf *b, const struct chain_form *f, int reg, chain_name_fn *name,
                      const void *arg);
/* A register as a value of a kind, converted where it is of another. */
void chain_value(struct mlo_buf *b, const struct chain_form *f, int reg, enum chain_kind as,
                 chain_name_fn *name, const void *arg);
int chain_arguments(const struct cuda_chain_instruction *in); /* how many of a, b, c are registers */
bool chain_is_reduction(enum cuda_chain_op op);
bool chain_is_integral(float v); /* an integer that float32 has exactly, as all its neighbours */

/* --- text (chain.c) --- */

const char *chain_type(enum chain_kind kind);
/* The index into a tensor by the coordinates d0, d1, … of dims begin … end-1; "0" when it does not move. */
void chain_offset(struct mlo_buf *b, const struct chain_form *f, int tensor, int begin, int end);
/* Coordinates of the position `of` in dims begin … end-1; `step`: what the innermost is counted in. */
void chain_coordinates(struct mlo_buf *b, const struct chain_form *f, const char *of, int begin, int end,
                       int step, const char *indent);
void chain_packs(struct mlo_buf *b, const struct chain_form *f); /* types pack_in0, pack_out0, … */
/* A tensor's pointer at index 0. */
void chain_base(struct mlo_buf *b, const struct chain_form *f, int tensor);
/* `const TYPE pN = *(`: operand t, a pack where it is vectored. */
void chain_load(struct mlo_buf *b, const struct chain_form *f, int t, const char *indent);
bool chain_reads(const struct chain_form *f, int operand, const bool *wanted);
/* `const TYPE rN = …;` */
void chain_define(struct mlo_buf *b, const struct chain_form *f, int reg, const char *indent,
                  chain_name_fn *name, const void *arg);
/* `TO = …;` */
void chain_store(struct mlo_buf *b, const struct chain_form *f, int result, const char *to,
                 const char *indent, chain_name_fn *name, const void *arg);

/* --- rows (chain_rows.c) --- */

enum { CHAIN_BLOCK = 256, CHAIN_BUDGET = 64 };
struct chain_rows {
    const struct chain_form *f;
    int threads, budget;
    bool columns;                    /* neighbouring threads take neighbouring rows */
    int group, together;             /* threads of a row, rows of a block */
    int turns;                       /* of a thread over its row, unrolled; 0: a loop */
    bool keep[CUDA_CHAIN_REGISTERS]; /* elements that stay in registers between rounds */
    int made[CUDA_CHAIN_REGISTERS];  /* the round that makes them; -1: none */
};
void chain_rows_plan(struct chain_rows *w, const struct chain_form *f);
void chain_rows_text(struct mlo_buf *b, const struct chain_rows *w);

#endif
