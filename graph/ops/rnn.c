/* RNN, GRU and LSTM. Gates are computed in double, state is kept in double between steps, results are rounded
 * once to the element type. */
#include <math.h>
#include <stdlib.h>

#include "graph/ops/ops_impl.h"

enum { INPUT_X, INPUT_W, INPUT_R, INPUT_B, INPUT_LENGTHS, INPUT_H, INPUT_C, INPUT_P, INPUT_COUNT };

struct activation {
    double (*fn)(double x, double alpha, double beta);
    double alpha, beta;
};

static double fn_affine(double x, double a, double b)
{
    return a * x + b;
}
static double fn_relu(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return x < 0 ? 0 : x;
}
static double fn_leaky_relu(double x, double a, double b)
{
    MLO_UNUSED(b);
    return x < 0 ? a * x : x;
}
static double fn_thresholded_relu(double x, double a, double b)
{
    MLO_UNUSED(b);
    return x > a ? x : 0;
}
static double fn_tanh(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return mlo_math_tanh(x);
}
static double fn_scaled_tanh(double x, double a, double b)
{
    return a * mlo_math_tanh(b * x);
}
static double fn_sigmoid(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return mlo_math_sigmoid(x);
}
static double fn_hard_sigmoid(double x, double a, double b)
{
    double y = a * x + b;
    return y < 0 ? 0 : y > 1 ? 1 : y;
}
static double fn_elu(double x, double a, double b)
{
    MLO_UNUSED(b);
    return x < 0 ? a * (mlo_math_exp(x) - 1) : x;
}
static double fn_softsign(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return x / (1 + fabs(x));
}
static double fn_softplus(double x, double a, double b)
{
    MLO_UNUSED(a), MLO_UNUSED(b);
    return mlo_math_softplus(x);
}

static const struct {
    const char *name;
    struct activation activation; /* with its default alpha and beta */
    int numbers;                  /* how many of activation_alpha and activation_beta it takes: bits 1, 2 */
} known[] = {
    {"Affine", {fn_affine, 1, 0}, 3},
    {"Elu", {fn_elu, 1, 0}, 1},
    {"HardSigmoid", {fn_hard_sigmoid, 0.2f, 0.5}, 3},
    {"LeakyRelu", {fn_leaky_relu, 0.01f, 0}, 1},
    {"Relu", {fn_relu, 0, 0}, 0},
    {"ScaledTanh", {fn_scaled_tanh, 1, 1}, 3},
    {"Sigmoid", {fn_sigmoid, 0, 0}, 0},
    {"Softplus", {fn_softplus, 0, 0}, 0},
    {"Softsign", {fn_softsign, 0, 0}, 0},
    {"Tanh", {fn_tanh, 0, 0}, 0},
    {"ThresholdedRelu", {fn_thresholded_relu, 1, 0}, 1},
};

struct cell;
typedef void step_fn(struct cell *c);

struct kind {
    const char *op;
    int gates, functions; /* functions: activations of one direction */
    const char *defaults[3];
    step_fn *step;
};

/* What one op does, from its attributes. */
struct rnn {
    const struct kind *kind;
    int directions;
    bool backward, batch_first, linear_before_reset, couple;
    int64_t hidden; /* -1: as the weights say */
    double clip;    /* 0: none */
    struct activation act[2][3];
};

/* One direction and one sequence at one step. */
struct cell {
    const struct rnn *rnn;
    const struct activation *act;
    size_t inputs, hidden;
    const double *w, *r, *wb, *rb, *peephole; /* biases and peepholes may be NULL */
    const double *x;
    double *h, *c, *gate, *next; /* gate: gates x hidden */
};

static double clipped(const struct cell *c, double v)
{
    double bound = c->rnn->clip;
    return bound > 0 ? fmin(fmax(v, -bound), bound) : v;
}

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static double activate(const struct cell *c, int which, double v)
{
    const struct activation *a = &c->act[which];
    return a->fn(clipped(c, v), a->alpha, a->beta);
}

/* x . W^T + Wb, and h . R^T + Rb, of row i of gate g */
static double from_input(const struct cell *c, size_t g, size_t i)
{
    size_t row = g * c->hidden + i;
    return dot(c->x, c->w + row * c->inputs, c->inputs) + (c->wb ? c->wb[row] : 0);
}
static double from_state(const struct cell *c, const double *h, size_t g, size_t i)
{
    size_t row = g * c->hidden + i;
    return dot(h, c->r + row * c->hidden, c->hidden) + (c->rb ? c->rb[row] : 0);
}

static void step_rnn(struct cell *c)
{
    for (size_t i = 0; i < c->hidden; i++)
        c->next[i] = activate(c, 0, from_input(c, 0, i) + from_state(c, c->h, 0, i));
    memcpy(c->h, c->next, c->hidden * sizeof *c->h);
}

/* Gates in order z, r, h. */
static void step_gru(struct cell *c)
{
    size_t n = c->hidden;
    double *z = c->gate, *r = z + n, *reset = r + n;
    for (size_t i = 0; i < n; i++) {
        z[i] = activate(c, 0, from_input(c, 0, i) + from_state(c, c->h, 0, i));
        r[i] = activate(c, 0, from_input(c, 1, i) + from_state(c, c->h, 1, i));
        reset[i] = r[i] * c->h[i];
    }
    for (size_t i = 0; i < n; i++) {
        double state =
            c->rnn->linear_before_reset ? r[i] * from_state(c, c->h, 2, i) : from_state(c, reset, 2, i);
        c->next[i] = (1 - z[i]) * activate(c, 1, from_input(c, 2, i) + state) + z[i] * c->h[i];
    }
    memcpy(c->h, c->next, n * sizeof *c->h);
}

/* Gates in order i, o, f, c; peepholes i, o, f. */
static void step_lstm(struct cell *c)
{
    size_t n = c->hidden;
    const double *p = c->peephole;
    for (size_t i = 0; i < n; i++) {
        double in =
            activate(c, 0, from_input(c, 0, i) + from_state(c, c->h, 0, i) + (p ? p[i] * c->c[i] : 0));
        double forget = from_input(c, 2, i) + from_state(c, c->h, 2, i) + (p ? p[2 * n + i] * c->c[i] : 0);
        forget = c->rnn->couple ? 1 - in : activate(c, 0, forget);
        double cell = activate(c, 1, from_input(c, 3, i) + from_state(c, c->h, 3, i));
        double now = forget * c->c[i] + in * cell;
        double open =
            activate(c, 0, from_input(c, 1, i) + from_state(c, c->h, 1, i) + (p ? p[n + i] * now : 0));
        c->gate[i] = now;
        c->next[i] = open * c->act[2].fn(now, c->act[2].alpha, c->act[2].beta);
    }
    memcpy(c->c, c->gate, n * sizeof *c->c);
    memcpy(c->h, c->next, n * sizeof *c->h);
}

static const struct kind kinds[] = {
    {"RNN", 1, 1, {"Tanh"}, step_rnn},
    {"GRU", 3, 2, {"Sigmoid", "Tanh"}, step_gru},
    {"LSTM", 4, 3, {"Sigmoid", "Tanh", "Tanh"}, step_lstm},
};

static bool find_activation(const char *name, struct activation *out, int *numbers)
{
    for (size_t i = 0; i < MLO_COUNT(known); i++)
        if (strcasecmp(known[i].name, name) == 0) {
            *out = known[i].activation;
            *numbers = known[i].numbers;
            return true;
        }
    return false;
}

static enum mlo_status read_activations(const struct mlo_node *node, struct rnn *r, struct mlo_error *err)
{
    const struct mlo_attr *names = mlo_node_attr(node, "activations");
    size_t alphas, betas, alpha_at = 0, beta_at = 0, want = (size_t)(r->directions * r->kind->functions);
    const float *alpha = mlo_node_attr_floats(node, "activation_alpha", &alphas);
    const float *beta = mlo_node_attr_floats(node, "activation_beta", &betas);
    if (names && (names->type != MLO_ATTR_STRINGS || names->strings.count != want))
        return mlo_error_set(err, MLO_EINVAL, "attribute 'activations' does not hold %zu names", want);
    for (size_t i = 0; i < want; i++) {
        size_t d = i / (size_t)r->kind->functions, k = i % (size_t)r->kind->functions;
        const char *name = names ? names->strings.s[i] : r->kind->defaults[k];
        struct activation *a = &r->act[d][k];
        int numbers = 0;
        if (!find_activation(name, a, &numbers))
            return mlo_error_set(err, MLO_EINVAL,
                                 "attribute 'activations' has '%.40s', which is no activation", name);
        if (numbers & 1 && alpha_at < alphas)
            a->alpha = alpha[alpha_at++];
        if (numbers & 2 && beta_at < betas)
            a->beta = beta[beta_at++];
    }
    return MLO_OK;
}

static enum mlo_status read_rnn(const struct mlo_node *node, struct rnn *r, struct mlo_error *err)
{
    static const char *const directions[] = {"forward", "reverse", "bidirectional"};
    enum mlo_status status = MLO_OK;
    unsigned direction = 0;
    size_t k = 0;
    while (strcmp(kinds[k].op, node->op_type) != 0)
        k++;
    *r = (struct rnn){.kind = &kinds[k], .hidden = mlo_node_attr_i(node, "hidden_size", -1)};
    MLO_TRY(mlo_op_choose(node, "direction", "forward", directions, 3, &direction, err));
    r->directions = direction == 2 ? 2 : 1;
    r->backward = direction == 1;
    int64_t layout = mlo_node_attr_i(node, "layout", 0);
    if (layout != 0 && layout != 1) {
        status = mlo_error_set(err, MLO_EINVAL, "attribute 'layout' is %lld", (long long)layout);
        goto out;
    }
    r->batch_first = layout == 1;
    r->linear_before_reset = mlo_node_attr_i(node, "linear_before_reset", 0) != 0;
    r->couple = mlo_node_attr_i(node, "input_forget", 0) != 0;
    r->clip = mlo_node_attr_f(node, "clip", 0);
    MLO_TRY(read_activations(node, r, err));
out:
    return status;
}

/* Dims that several inputs must agree on; -1: not known yet. */
struct sizes {
    int64_t time, batch, inputs, hidden;
};

static enum mlo_status agree(int64_t *size, int64_t value, int input, const char *what, struct mlo_error *err)
{
    if (value >= 0 && *size >= 0 && *size != value)
        return mlo_error_set(err, MLO_EINVAL, "input %d says the %s is %lld, but it is %lld", input, what,
                             (long long)value, (long long)*size);
    if (value >= 0)
        *size = value;
    return MLO_OK;
}

/* rank, and for each dim what it must be: a size, a fixed number of it, or a constant. */
static enum mlo_status check_sizes(const struct mlo_node *node, const struct rnn *r, struct sizes *s,
                                   struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int64_t one = r->directions, gates = r->kind->gates;
    static const int ranks[INPUT_COUNT] = {3, 3, 3, 2, 1, 3, 3, 2};
    *s = (struct sizes){-1, -1, -1, r->hidden};
    for (int i = 0; i < node->input_count; i++) {
        const struct mlo_type *t = mlo_op_in(node, i);
        if (!t || t->rank < 0)
            continue;
        MLO_TRY(mlo_op_want_rank(node, i, ranks[i], err));
        int64_t d[3];
        for (int k = 0; k < 3; k++)
            d[k] = k < t->rank ? t->dims[k].value : -1;
        int64_t directions = one, per_hidden = 0, last = t->rank > 1 ? d[t->rank - 1] : -1;
        switch (i) {
        case INPUT_X:
            MLO_TRY(agree(&s->time, d[r->batch_first], i, "sequence length", err));
            MLO_TRY(agree(&s->batch, d[!r->batch_first], i, "batch", err));
            MLO_TRY(agree(&s->inputs, d[2], i, "input size", err));
            continue;
        case INPUT_LENGTHS:
            MLO_TRY(agree(&s->batch, d[0], i, "batch", err));
            continue;
        case INPUT_H:
        case INPUT_C:
            MLO_TRY(agree(&directions, d[r->batch_first], i, "number of directions", err));
            MLO_TRY(agree(&s->batch, d[!r->batch_first], i, "batch", err));
            MLO_TRY(agree(&s->hidden, d[2], i, "hidden size", err));
            continue;
        case INPUT_W:
            MLO_TRY(agree(&s->inputs, last, i, "input size", err));
            per_hidden = gates;
            last = d[1];
            break;
        case INPUT_R:
            MLO_TRY(agree(&s->hidden, last, i, "hidden size", err));
            per_hidden = gates;
            last = d[1];
            break;
        default:
            per_hidden = i == INPUT_B ? 2 * gates : 3;
        }
        MLO_TRY(agree(&directions, d[0], i, "number of directions", err));
        if (last >= 0 && last % per_hidden) {
            status =
                mlo_error_set(err, MLO_EINVAL, "input %d holds %lld rows, which %lld gates do not divide", i,
                              (long long)last, (long long)per_hidden);
            goto out;
        }
        MLO_TRY(agree(&s->hidden, last < 0 ? -1 : last / per_hidden, i, "hidden size", err));
    }
out:
    return status;
}

static enum mlo_status infer_rnn(const struct mlo_node *node, struct mlo_type *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_type *x = mlo_op_in(node, INPUT_X);
    struct rnn r;
    struct sizes s;
    MLO_TRY(read_rnn(node, &r, err));
    MLO_TRY(check_sizes(node, &r, &s, err));
    struct mlo_dim time = {s.time, NULL}, batch = {s.batch, NULL}, hidden = {s.hidden, NULL};
    struct mlo_dim directions = mlo_dim_fixed(r.directions);
    if (x->rank == 3 && time.value < 0)
        time = x->dims[r.batch_first];
    if (x->rank == 3 && batch.value < 0)
        batch = x->dims[!r.batch_first];
    for (int i = 0; i < node->output_count; i++) {
        struct mlo_type *t = &out[i];
        *t = (struct mlo_type){.dtype = x->dtype, .rank = i == 0 ? 4 : 3};
        struct mlo_dim *d = t->dims;
        if (i == 0 && r.batch_first) {
            d[0] = batch, d[1] = time, d[2] = directions, d[3] = hidden;
        } else if (i == 0) {
            d[0] = time, d[1] = directions, d[2] = batch, d[3] = hidden;
        } else {
            d[r.batch_first] = directions, d[!r.batch_first] = batch, d[2] = hidden;
        }
    }
out:
    return status;
}

static void put(struct mlo_tensor *t, size_t first, const double *values, size_t count)
{
    for (size_t i = 0; t && i < count; i++)
        mlo_tensor_set_f64(t, first + i, values[i]);
}

/* One direction of one sequence: `length` of `time` steps; behind its end the outputs stay zero. */
static void run_sequence(struct cell *c, const double *x, const struct sizes *s, int direction, size_t b,
                         size_t length, struct mlo_tensor *y)
{
    const struct rnn *r = c->rnn;
    size_t time = (size_t)s->time, batch = (size_t)s->batch, directions = (size_t)r->directions;
    bool backward = direction == 1 || r->backward;
    for (size_t k = 0; k < length; k++) {
        size_t t = backward ? length - 1 - k : k, d = (size_t)direction;
        c->x = x + (r->batch_first ? b * time + t : t * batch + b) * c->inputs;
        r->kind->step(c);
        put(y,
            (r->batch_first ? (b * time + t) * directions + d : (t * directions + d) * batch + b) * c->hidden,
            c->h, c->hidden);
    }
}

static enum mlo_status sequence_length(const struct mlo_tensor *lengths, size_t b, int64_t time, size_t *out,
                                       struct mlo_error *err)
{
    int64_t length = lengths ? mlo_tensor_get_i64(lengths, b) : time;
    if (length < 0 || length > time)
        return mlo_error_set(err, MLO_EINVAL, "sequence %zu is stated to be %lld long, of %lld", b,
                             (long long)length, (long long)time);
    *out = (size_t)length;
    return MLO_OK;
}

static enum mlo_status eval_rnn(const struct mlo_node *node, const struct mlo_tensor *const *in,
                                struct mlo_tensor *const *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct rnn r;
    double *data[INPUT_COUNT] = {0}, *room = NULL;
    MLO_TRY(mlo_op_alloc(node, in, out, err));
    MLO_TRY(read_rnn(node, &r, err));
    MLO_TRY(mlo_op_want_float(in[0], err));
    for (int i = 0; i < node->input_count; i++)
        if (i != INPUT_LENGTHS)
            MLO_TRY(mlo_op_doubles(in[i], &data[i], err));
    const struct mlo_tensor *x = in[0], *lengths = mlo_op_operand(node, in, INPUT_LENGTHS);
    struct sizes s = {x->dims[r.batch_first], x->dims[!r.batch_first], x->dims[2], in[INPUT_R]->dims[2]};
    size_t n = (size_t)s.hidden, inputs = (size_t)s.inputs, gates = (size_t)r.kind->gates, length;
    room = calloc(n * (gates + 3) + 1, sizeof *room);
    if (!room) {
        status = mlo_error_nomem(err);
        goto out;
    }
    for (int d = 0; d < r.directions; d++) {
        size_t k = (size_t)d;
        struct cell c = {.rnn = &r, .act = r.act[d], .inputs = inputs, .hidden = n};
        c.w = data[INPUT_W] + k * gates * n * inputs;
        c.r = data[INPUT_R] + k * gates * n * n;
        c.wb = data[INPUT_B] ? data[INPUT_B] + k * 2 * gates * n : NULL;
        c.rb = c.wb ? c.wb + gates * n : NULL;
        c.peephole = data[INPUT_P] ? data[INPUT_P] + k * 3 * n : NULL;
        c.h = room, c.c = room + n, c.next = room + 2 * n, c.gate = room + 3 * n;
        for (size_t b = 0; b < (size_t)s.batch; b++) {
            size_t at = (r.batch_first ? b * (size_t)r.directions + k : k * (size_t)s.batch + b) * n;
            memset(room, 0, 2 * n * sizeof *room);
            if (data[INPUT_H])
                memcpy(c.h, data[INPUT_H] + at, n * sizeof *room);
            if (data[INPUT_C])
                memcpy(c.c, data[INPUT_C] + at, n * sizeof *room);
            MLO_TRY(sequence_length(lengths, b, s.time, &length, err));
            run_sequence(&c, data[INPUT_X], &s, d, b, length, out[0]);
            put(node->output_count > 1 ? out[1] : NULL, at, c.h, n);
            put(node->output_count > 2 ? out[2] : NULL, at, c.c, n);
        }
    }
out:
    for (int i = 0; i < INPUT_COUNT; i++)
        free(data[i]);
    free(room);
    return status;
}

#define RNN(name, since, inputs, outputs)                                                                    \
    {                                                                                                        \
        "", name, since, infer_rnn, eval_rnn, MLO_OP_PURE, 3, inputs, 1, outputs                             \
    }
static const struct mlo_op rows[] = {
    RNN("RNN", 7, 6, 2),  RNN("RNN", 14, 6, 2),  RNN("RNN", 22, 6, 2),
    RNN("GRU", 7, 6, 2),  RNN("GRU", 14, 6, 2),  RNN("GRU", 22, 6, 2),
    RNN("LSTM", 7, 8, 3), RNN("LSTM", 14, 8, 3), RNN("LSTM", 22, 8, 3),
};
const struct mlo_op_family mlo_ops_rnn = {rows, MLO_COUNT(rows)};
