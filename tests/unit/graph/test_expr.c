/* Symbolic dims: arithmetic, and what shape inference makes of it. */
#include "../../cm.h"

#include "graph/graph.h"

static struct mlo_arena *arena;

static int setup(void **state)
{
    MLO_UNUSED(state);
    return (arena = mlo_arena_new()) ? 0 : -1;
}

static int teardown(void **state)
{
    MLO_UNUSED(state);
    mlo_arena_free(arena);
    return 0;
}

static struct mlo_expr name(const char *text)
{
    return (struct mlo_expr){MLO_EXPR_TEXT, 0, text};
}

#define N(n) mlo_expr_number(n)
#define ADD(a, b) mlo_expr_add(arena, a, b)
#define SUB(a, b) mlo_expr_sub(arena, a, b)
#define MUL(a, b) mlo_expr_mul(arena, a, b)
#define DIV(a, b) mlo_expr_div(arena, a, b)

static void expect(struct mlo_expr e, const char *text)
{
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)e.number);
    assert_string_equal(e.kind == MLO_EXPR_TEXT ? e.text : e.kind == MLO_EXPR_NUMBER ? number : "?", text);
}

static void test_expr__has_one_text_for_equal_values(void **state)
{
    MLO_UNUSED(state);
    struct mlo_expr batch = name("batch"), seq = name("seq");
    expect(MUL(batch, N(12)), "12*batch");
    expect(MUL(N(12), batch), "12*batch");
    expect(ADD(MUL(N(2), seq), N(1)), "2*seq+1");
    expect(MUL(ADD(seq, N(1)), batch), "batch*seq+batch");
    expect(ADD(MUL(seq, batch), batch), "batch*seq+batch");
    expect(SUB(ADD(seq, N(1)), seq), "1");
    expect(SUB(N(0), seq), "-seq");
    expect(SUB(batch, MUL(N(3), seq)), "batch-3*seq");
    expect(MUL(N(0), seq), "0");
}

static void test_expr__divides(void **state)
{
    MLO_UNUSED(state);
    struct mlo_expr b = name("b"), s = name("s");
    expect(DIV(MUL(N(768), MUL(b, s)), MUL(N(12), b)), "64*s");
    expect(DIV(MUL(ADD(s, N(1)), b), ADD(s, N(1))), "b");
    expect(DIV(ADD(MUL(N(2), s), N(1)), N(2)), "s");
    expect(ADD(DIV(SUB(s, N(1)), N(2)), N(1)), "(s+1)/2");
    expect(DIV(SUB(s, N(7)), N(2)), "(s+1)/2-4");
    expect(DIV(s, b), "?");
    expect(DIV(s, N(0)), "?");
    expect(DIV(N(7), N(2)), "3");
}

static void test_expr__keeps_foreign_names(void **state)
{
    MLO_UNUSED(state);
    expect(MUL(name("unk__12"), N(1)), "unk__12");
    expect(MUL(name("floor(h/2 - 1/2)"), N(3)), "3*{floor(h/2 - 1/2)}");
    expect(DIV(MUL(name("floor(h/2 - 1/2)"), N(3)), N(3)), "floor(h/2 - 1/2)");
    expect(ADD(name("past + 1"), N(1)), "past+2");
    expect(ADD(name("12abc"), N(1)), "{12abc}+1");
    assert_true(mlo_expr_same(name("past + 1"), name("1+past")));
    assert_false(mlo_expr_same(name("past + 1"), name("past+2")));
}

static void test_expr__min_and_max(void **state)
{
    MLO_UNUSED(state);
    struct mlo_expr cut = mlo_expr_min(arena, name("seq"), N(512));
    expect(cut, "min(512,seq)");
    expect(mlo_expr_min(arena, N(512), name("seq")), "min(512,seq)");
    expect(mlo_expr_max(arena, name("s"), ADD(name("s"), N(1))), "s+1");
    assert_true(mlo_expr_is_min_of(cut, name("seq")));
    assert_false(mlo_expr_is_min_of(cut, name("eq")));
    assert_false(mlo_expr_is_min_of(name("seq"), name("seq")));
}

static void test_expr__bound_names_give_numbers(void **state)
{
    MLO_UNUSED(state);
    const struct mlo_binding both[] = {{"b", 4}, {"s", 9}};
    struct mlo_expr half = DIV(ADD(name("s"), N(2)), N(2));
    expect(mlo_expr_bind(arena, half, both, 2), "5");
    expect(mlo_expr_bind(arena, MUL(half, name("b")), both, 1), "4*(s)/2+4");
    expect(mlo_expr_bind(arena, MUL(half, name("b")), both, 2), "20");
    expect(mlo_expr_bind(arena, mlo_expr_min(arena, N(5), name("s")), both, 2), "5");
    expect(mlo_expr_bind(arena, name("other"), both, 2), "other");
}

/* Whatever a file's dim is called: an answer, and no crash. */
static void test_expr__odd_names_are_survived(void **state)
{
    MLO_UNUSED(state);
    static const char *const odd[] = {"(",
                                      ")",
                                      "((",
                                      "{",
                                      "}",
                                      "a{b",
                                      "min(",
                                      "min(,)",
                                      "min()",
                                      "(a)/",
                                      "(a)/0",
                                      "(a)/99999999999999999999",
                                      "9223372036854775807",
                                      "-",
                                      "--a",
                                      "a-",
                                      "*",
                                      "a*",
                                      "((((((((((((a))))))))))))",
                                      "min(min(min(a,b),c),d)",
                                      " ",
                                      "a b",
                                      "/2",
                                      "99999999999999999999999",
                                      "max(a,b",
                                      "a,b"};
    const struct mlo_binding binding = {"a", 3};
    for (size_t i = 0; i < MLO_COUNT(odd); i++) {
        struct mlo_expr e = name(odd[i]);
        for (int round = 0; round < 3; round++) {
            e = DIV(ADD(MUL(e, N(INT64_MAX / 3)), name("a")), N(2));
            e = mlo_expr_bind(arena, mlo_expr_max(arena, e, name(odd[i])), &binding, 1);
        }
        assert_true(mlo_expr_same(name(odd[i]), name(odd[i])));
    }
}

/* --- shape inference --------------------------------------------------------------------------------------
 */

struct build {
    struct mlo_model *model;
    struct mlo_graph *g;
    int serial;
};

static struct mlo_value *input(struct build *b, const char *called, enum mlo_dtype dtype, int rank,
                               const struct mlo_dim *dims)
{
    struct mlo_type type = {.dtype = dtype, .rank = rank};
    memcpy(type.dims, dims, (size_t)rank * sizeof *dims);
    struct mlo_value *v = mlo_graph_add_value(b->g, called, &type);
    assert_non_null(v);
    assert_int_equal(mlo_graph_add_input(b->g, v, NULL), MLO_OK);
    return v;
}

static struct mlo_value *ints(struct build *b, int count, const int64_t *list)
{
    struct mlo_tensor t;
    int64_t dims[1] = {count};
    assert_int_equal(mlo_tensor_init(&t, MLO_INT64, count > 0, dims, NULL), MLO_OK);
    memcpy(t.data, list, t.size_bytes);
    return mlo_graph_add_constant_take(b->g, "k", &t);
}

#define INTS(b, ...) ints(b, MLO_COUNT(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})
#define SCALAR(b, n) ints(b, 0, (int64_t[]){n})

static struct mlo_value *floats(struct build *b, int rank, const int64_t *dims)
{
    struct mlo_tensor t;
    assert_int_equal(mlo_tensor_init(&t, MLO_FLOAT32, rank, dims, NULL), MLO_OK);
    return mlo_graph_add_constant_take(b->g, "w", &t);
}

static struct mlo_value *op(struct build *b, const char *type, int count, struct mlo_value *const *in,
                            const char *attr, int64_t value)
{
    struct mlo_value *out = mlo_graph_add_value(b->g, type, NULL);
    struct mlo_node *node = mlo_graph_add_node(b->g, NULL, "", type, type, in, count, &out, 1);
    assert_non_null(node);
    if (attr)
        assert_true(mlo_node_set_i(node, attr, value));
    return out;
}

#define OP(b, type, ...)                                                                                     \
    op(b, type, MLO_COUNT(((struct mlo_value *[]){__VA_ARGS__})), (struct mlo_value *[]){__VA_ARGS__}, NULL, \
       0)

static struct mlo_value *dim_of(struct build *b, struct mlo_value *x, int64_t at)
{
    return OP(b, "Gather", OP(b, "Shape", x), SCALAR(b, at));
}

static struct mlo_value *list_of(struct build *b, int count, struct mlo_value *const *scalars)
{
    struct mlo_value *parts[8];
    for (int i = 0; i < count; i++)
        parts[i] = OP(b, "Unsqueeze", scalars[i], INTS(b, 0));
    return op(b, "Concat", count, parts, "axis", 0);
}

static struct mlo_value *transposed(struct build *b, struct mlo_value *x, int64_t p0, int64_t p1, int64_t p2,
                                    int64_t p3)
{
    struct mlo_value *y = OP(b, "Transpose", x);
    assert_true(mlo_node_set_ints(y->producer, "perm", (int64_t[]){p0, p1, p2, p3}, 4));
    return y;
}

/* [batch, seq, 48] -> heads [batch, 4, seq, 12], as exporters write it: by Shape, Gather and Concat. */
static struct mlo_value *heads(struct build *b, struct mlo_value *x)
{
    struct mlo_value *flat = OP(b, "MatMul", x, floats(b, 2, (int64_t[]){48, 48}));
    struct mlo_value *shape = list_of(
        b, 4, (struct mlo_value *[]){dim_of(b, flat, 0), dim_of(b, flat, 1), SCALAR(b, 4), SCALAR(b, 12)});
    return transposed(b, OP(b, "Reshape", flat, shape), 0, 2, 1, 3);
}

static void expect_type(const struct mlo_value *v, const char *text)
{
    char described[200];
    assert_string_equal(mlo_type_describe(&v->type, described, sizeof described), text);
}

static void test_infer__attention_is_shaped_but_for_its_names(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct build b = {0};
    assert_ok(mlo_model_new(13, &b.model, &err));
    b.g = b.model->graph;
    const struct mlo_dim dims[2] = {{-1, "batch"}, {-1, "seq"}};
    struct mlo_value *ids = input(&b, "ids", MLO_INT64, 2, dims);
    /* positions: a slice of a constant as long as the sequence */
    struct mlo_value *range = OP(&b, "Range", SCALAR(&b, 0), dim_of(&b, ids, 1), SCALAR(&b, 1));
    struct mlo_value *cut = OP(&b, "Slice", floats(&b, 2, (int64_t[]){64, 48}), INTS(&b, 0),
                               OP(&b, "Unsqueeze", dim_of(&b, ids, 1), INTS(&b, 0)), INTS(&b, 0));
    struct mlo_value *words = OP(&b, "Gather", floats(&b, 2, (int64_t[]){100, 48}), ids);
    struct mlo_value *x = OP(&b, "Add", cut, words);
    struct mlo_value *q = heads(&b, x), *k = heads(&b, x), *v = heads(&b, x);
    struct mlo_value *scores =
        op(&b, "Softmax", 1, &(struct mlo_value *){OP(&b, "MatMul", q, transposed(&b, k, 0, 1, 3, 2))},
           "axis", -1);
    struct mlo_value *mixed = transposed(&b, OP(&b, "MatMul", scores, v), 0, 2, 1, 3);
    struct mlo_value *merged =
        OP(&b, "Reshape", mixed,
           list_of(&b, 3, (struct mlo_value *[]){dim_of(&b, mixed, 0), SCALAR(&b, -1), SCALAR(&b, 48)}));
    struct mlo_value *zero = OP(&b, "Reshape", merged, INTS(&b, 0, -1, 4, 12));
    struct mlo_value *folded = OP(&b, "Reshape", zero, INTS(&b, -1, 12));
    /* Expand to a shape whose -1 are replaced by Where(Equal(shape, -1), 1, shape) */
    struct mlo_value *target = list_of(&b, 2, (struct mlo_value *[]){dim_of(&b, ids, 0), SCALAR(&b, -1)});
    struct mlo_value *is = OP(&b, "Equal", target, INTS(&b, -1));
    struct mlo_value *wide = OP(&b, "Expand", range, OP(&b, "Where", is, INTS(&b, 1, 1), target));
    struct mlo_value *half = OP(&b, "Div", OP(&b, "Mul", dim_of(&b, ids, 1), SCALAR(&b, 2)), SCALAR(&b, 2));
    struct mlo_value *head = OP(&b, "Slice", merged, INTS(&b, 0), INTS(&b, 1), INTS(&b, 1));
    struct mlo_value *longer = op(&b, "Concat", 2, (struct mlo_value *[]){merged, head}, "axis", 1);
    struct mlo_value *one = OP(&b, "Reshape", longer, OP(&b, "Concat", INTS(&b, -1)));
    assert_true(mlo_node_set_i(one->producer->inputs[1]->producer, "axis", 0));
    struct mlo_value *again = OP(&b, "Slice", merged, INTS(&b, 1), INTS(&b, INT64_MAX), INTS(&b, 1));
    struct mlo_value *part =
        OP(&b, "Slice", merged, INTS(&b, 0), OP(&b, "Unsqueeze", half, INTS(&b, 0)), INTS(&b, 1));
    assert_ok(mlo_graph_add_output(b.g, folded, &err));
    assert_ok(mlo_graph_infer(b.g, &err));
    expect_type(range, "int64[seq]");
    expect_type(cut, "float32[min(64,seq),48]");
    expect_type(x, "float32[batch,seq,48]");
    expect_type(q, "float32[batch,4,seq,12]");
    expect_type(scores, "float32[batch,4,seq,seq]");
    expect_type(merged, "float32[batch,seq,48]");
    expect_type(zero, "float32[batch,seq,4,12]");
    expect_type(folded, "float32[4*batch*seq,12]");
    expect_type(wide, "int64[batch,seq]");
    expect_type(head, "float32[batch,1,48]");
    expect_type(again, "float32[batch,seq-1,48]");
    expect_type(part, "float32[batch,seq,48]");
    const struct mlo_binding bindings[] = {{"batch", 2}, {"seq", 7}};
    assert_ok(mlo_graph_bind(b.g, bindings, 2, -1, &err));
    for (int i = 0; i < b.g->value_count; i++)
        assert_true(mlo_type_static(&b.g->values[i]->type, NULL));
    expect_type(folded, "float32[56,12]");
    expect_type(one, "float32[768]");
    expect_type(head, "float32[2,1,48]");
    mlo_model_free(b.model);
}

static void test_infer__windows_over_named_sizes(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct build b = {0};
    assert_ok(mlo_model_new(13, &b.model, &err));
    b.g = b.model->graph;
    const struct mlo_dim dims[4] = {{-1, "n"}, {3, NULL}, {-1, "h"}, {-1, "w"}};
    struct mlo_value *x = input(&b, "x", MLO_FLOAT32, 4, dims);
    struct mlo_value *conv = OP(&b, "Conv", x, floats(&b, 4, (int64_t[]){8, 3, 3, 3}));
    assert_true(mlo_node_set_ints(conv->producer, "pads", (int64_t[]){1, 1, 0, 0}, 4));
    assert_true(mlo_node_set_ints(conv->producer, "strides", (int64_t[]){1, 2}, 2));
    struct mlo_value *flat = OP(&b, "Flatten", conv);
    struct mlo_value *back = OP(&b, "Reshape", flat, OP(&b, "Shape", conv));
    assert_ok(mlo_graph_add_output(b.g, back, &err));
    assert_ok(mlo_graph_infer(b.g, &err));
    expect_type(conv, "float32[n,8,h-1,(w)/2]");
    expect_type(flat, "float32[n,8*(w)/2*h-8*(w)/2]");
    expect_type(back, "float32[n,8,h-1,(w)/2]");
    mlo_model_free(b.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expr__has_one_text_for_equal_values),
        cmocka_unit_test(test_expr__divides),
        cmocka_unit_test(test_expr__keeps_foreign_names),
        cmocka_unit_test(test_expr__min_and_max),
        cmocka_unit_test(test_expr__bound_names_give_numbers),
        cmocka_unit_test(test_expr__odd_names_are_survived),
        cmocka_unit_test(test_infer__attention_is_shaped_but_for_its_names),
        cmocka_unit_test(test_infer__windows_over_named_sizes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
