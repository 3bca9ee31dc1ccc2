/* Polynomials over the text of their atoms. */
#include "graph/expr.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "graph/infer.h"

enum { TERMS_MAX = 12, FACTORS_MAX = 6, TEXT_MAX = 240, DEPTH_MAX = 8 };

struct atom {
    const char *at;
    int length;
};
struct term {
    int64_t k;
    int count;
    struct atom atoms[FACTORS_MAX]; /* sorted, repeated for powers */
};
struct poly {
    int count;
    struct term terms[TERMS_MAX]; /* sorted, no zero coefficients */
};

static int compare_atoms(const struct atom *a, const struct atom *b)
{
    int by_text = memcmp(a->at, b->at, (size_t)MLO_MIN(a->length, b->length));
    return by_text ? by_text : a->length - b->length;
}

static int compare_terms(const struct term *a, const struct term *b)
{
    if (a->count != b->count)
        return b->count - a->count;
    for (int i = 0; i < a->count; i++) {
        int c = compare_atoms(&a->atoms[i], &b->atoms[i]);
        if (c)
            return c;
    }
    return 0;
}

static bool poly_add_term(struct poly *p, const struct term *t)
{
    int i = 0, c = 1;
    if (!t->k)
        return true;
    while (i < p->count && (c = compare_terms(&p->terms[i], t)) < 0)
        i++;
    if (i < p->count && c == 0) {
        if (__builtin_add_overflow(p->terms[i].k, t->k, &p->terms[i].k))
            return false;
        if (!p->terms[i].k) {
            memmove(&p->terms[i], &p->terms[i + 1], (size_t)(p->count - i - 1) * sizeof *t);
            p->count--;
        }
        return true;
    }
    if (p->count == TERMS_MAX)
        return false;
    memmove(&p->terms[i + 1], &p->terms[i], (size_t)(p->count - i) * sizeof *t);
    p->terms[i] = *t;
    p->count++;
    return true;
}

static bool term_mul(const struct term *a, const struct term *b, struct term *out)
{
    struct term r = {0};
    if (a->count + b->count > FACTORS_MAX || __builtin_mul_overflow(a->k, b->k, &r.k))
        return false;
    for (int i = 0, j = 0; i < a->count || j < b->count;) {
        bool first = j >= b->count || (i < a->count && compare_atoms(&a->atoms[i], &b->atoms[j]) <= 0);
        r.atoms[r.count++] = first ? a->atoms[i++] : b->atoms[j++];
    }
    *out = r;
    return true;
}

/* a += b * t */
static bool poly_add_product(struct poly *a, const struct poly *b, const struct term *t)
{
    for (int i = 0; i < b->count; i++) {
        struct term product;
        if (!term_mul(&b->terms[i], t, &product) || !poly_add_term(a, &product))
            return false;
    }
    return true;
}

static bool poly_mul(const struct poly *a, const struct poly *b, struct poly *out)
{
    struct poly r = {0};
    for (int i = 0; i < a->count; i++)
        if (!poly_add_product(&r, b, &a->terms[i]))
            return false;
    *out = r;
    return true;
}

static bool poly_is_number(const struct poly *p, int64_t *number)
{
    *number = p->count ? p->terms[0].k : 0;
    return p->count == 0 || (p->count == 1 && p->terms[0].count == 0);
}

static void poly_of_number(struct poly *p, int64_t number)
{
    p->count = number != 0;
    p->terms[0] = (struct term){.k = number};
}

static void poly_of_atom(struct poly *p, const char *at, int length)
{
    p->count = 1;
    p->terms[0] = (struct term){.k = 1, .count = 1, .atoms = {{at, length}}};
}

/* --- reading ----------------------------------------------------------------------------------------------
 */

struct reader {
    const char *at, *end;
    int depth;
};

static void skip_space(struct reader *r)
{
    while (r->at < r->end && *r->at == ' ')
        r->at++;
}

static bool accept(struct reader *r, char c)
{
    skip_space(r);
    if (r->at == r->end || *r->at != c)
        return false;
    r->at++;
    return true;
}

/* Stands behind the bracket that closes the one at r->at. */
static bool skip_bracket(struct reader *r, char open, char close)
{
    int depth = 0;
    for (; r->at < r->end; r->at++) {
        depth += *r->at == open ? 1 : *r->at == close ? -1 : 0;
        if (depth == 0) {
            r->at++;
            return true;
        }
    }
    return false;
}

static bool read_number(struct reader *r, int64_t *out)
{
    int64_t n = 0;
    const char *start = r->at;
    for (; r->at < r->end && isdigit((unsigned char)*r->at); r->at++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *r->at - '0', &n))
            return false;
    *out = n;
    return r->at > start;
}

static bool read_sum(struct reader *r, struct poly *out);

static bool name_char(char c)
{
    return c && !strchr(" +-*/(){},<>=%", c);
}

static bool read_factor(struct reader *r, struct poly *out)
{
    int64_t number;
    skip_space(r);
    const char *start = r->at;
    if (r->at == r->end)
        return false;
    if (isdigit((unsigned char)*start)) {
        if (!read_number(r, &number))
            return false;
        poly_of_number(out, number);
        return true;
    }
    if (*start == '{') {
        if (!skip_bracket(r, '{', '}'))
            return false;
        poly_of_atom(out, start + 1, (int)(r->at - start) - 2);
        return true;
    }
    if (*start == '(') {
        if (!skip_bracket(r, '(', ')'))
            return false;
        struct reader inside = {start + 1, r->at - 1, r->depth + 1};
        if (r->at < r->end && *r->at == '/') {
            r->at++;
            if (!read_number(r, &number) || !number)
                return false;
            poly_of_atom(out, start, (int)(r->at - start));
            return true;
        }
        return inside.depth < DEPTH_MAX && read_sum(&inside, out);
    }
    while (r->at < r->end && name_char(*r->at))
        r->at++;
    if (r->at == start)
        return false;
    if (r->at < r->end && *r->at == '(') {
        bool known = r->at - start == 3 && (memcmp(start, "min", 3) == 0 || memcmp(start, "max", 3) == 0);
        if (!known || !skip_bracket(r, '(', ')'))
            return false;
    }
    poly_of_atom(out, start, (int)(r->at - start));
    return true;
}

static bool read_product(struct reader *r, struct poly *out)
{
    if (!read_factor(r, out))
        return false;
    while (accept(r, '*')) {
        struct poly next;
        if (!read_factor(r, &next) || !poly_mul(out, &next, out))
            return false;
    }
    return true;
}

/* Reads to the end of the text. */
static bool read_sum(struct reader *r, struct poly *out)
{
    const struct term plus = {.k = 1}, minus = {.k = -1};
    bool negative = accept(r, '-');
    *out = (struct poly){0};
    for (;;) {
        struct poly next;
        if (!read_product(r, &next) || !poly_add_product(out, &next, negative ? &minus : &plus))
            return false;
        if (accept(r, '+'))
            negative = false;
        else if (accept(r, '-'))
            negative = true;
        else
            break;
    }
    skip_space(r);
    return r->at == r->end;
}

static bool poly_read(const char *text, size_t length, struct poly *out)
{
    struct reader r = {text, text + length, 0};
    if (length == 0 || length > TEXT_MAX)
        return false;
    if (!read_sum(&r, out)) {
        if (memchr(text, '{', length) || memchr(text, '}', length))
            return false; /* could not be put in braces */
        poly_of_atom(out, text, (int)length);
    }
    return true;
}

static bool poly_of(struct mlo_expr e, struct poly *out)
{
    if (e.kind == MLO_EXPR_NUMBER)
        poly_of_number(out, e.number);
    return e.kind == MLO_EXPR_NUMBER || (e.kind == MLO_EXPR_TEXT && poly_read(e.text, strlen(e.text), out));
}

/* --- writing ----------------------------------------------------------------------------------------------
 */

/* Whether an atom reads as itself, without braces. */
static bool atom_plain(const struct atom *a)
{
    struct reader r = {a->at, a->at + a->length, 0};
    struct poly p;
    return !isdigit((unsigned char)*a->at) && read_factor(&r, &p) && r.at == r.end && p.count == 1 &&
           p.terms[0].count == 1 && p.terms[0].atoms[0].at == a->at;
}

static size_t poly_write(const struct poly *p, char *out, size_t size)
{
    size_t at = 0;
    if (!p->count)
        return (size_t)snprintf(out, size, "0");
    for (int i = 0; i < p->count && at < size; i++) {
        const struct term *t = &p->terms[i];
        bool spell = t->count == 0 || (t->k != 1 && t->k != -1);
        if (spell)
            at += (size_t)snprintf(out + at, size - at, i && t->k > 0 ? "+%lld%s" : "%lld%s", (long long)t->k,
                                   t->count ? "*" : "");
        else
            at += (size_t)snprintf(out + at, size - at, "%s", t->k < 0 ? "-" : i ? "+" : "");
        for (int f = 0; f < t->count && at < size; f++) {
            bool plain = atom_plain(&t->atoms[f]);
            at += (size_t)snprintf(out + at, size - at, plain ? "%s%.*s" : "%s{%.*s}", f ? "*" : "",
                                   t->atoms[f].length, t->atoms[f].at);
        }
    }
    return at;
}

static struct mlo_expr poly_to_expr(struct mlo_arena *arena, const struct poly *p)
{
    const struct mlo_expr unknown = {0};
    struct mlo_expr e = {.kind = MLO_EXPR_TEXT};
    char text[TEXT_MAX + 1];
    if (poly_is_number(p, &e.number))
        return mlo_expr_number(e.number);
    if (p->count == 1 && p->terms[0].k == 1 && p->terms[0].count == 1) /* a name alone needs no braces */
        e.text = mlo_arena_strndup(arena, p->terms[0].atoms[0].at, (size_t)p->terms[0].atoms[0].length);
    else if (poly_write(p, text, sizeof text) < sizeof text)
        e.text = mlo_arena_strdup(arena, text);
    return e.text ? e : unknown;
}

/* --- arithmetic -------------------------------------------------------------------------------------------
 */

struct mlo_expr mlo_expr_number(int64_t number)
{
    return (struct mlo_expr){MLO_EXPR_NUMBER, number, NULL};
}

struct mlo_expr mlo_expr_of_dim(struct mlo_dim dim)
{
    if (dim.value >= 0)
        return mlo_expr_number(dim.value);
    return (struct mlo_expr){dim.name ? MLO_EXPR_TEXT : MLO_EXPR_UNKNOWN, 0, dim.name};
}

struct mlo_dim mlo_dim_of_expr(struct mlo_expr e)
{
    if (e.kind == MLO_EXPR_NUMBER && e.number >= 0)
        return (struct mlo_dim){e.number, NULL};
    return (struct mlo_dim){-1, e.kind == MLO_EXPR_TEXT ? e.text : NULL};
}

bool mlo_expr_same(struct mlo_expr a, struct mlo_expr b)
{
    if (a.kind != b.kind || a.kind == MLO_EXPR_UNKNOWN)
        return false;
    if (a.kind == MLO_EXPR_NUMBER || strcmp(a.text, b.text) == 0)
        return a.kind == MLO_EXPR_TEXT || a.number == b.number;
    const struct term minus = {.k = -1};
    struct poly p, q; /* a file may write "seq + 1" */
    return (strpbrk(a.text, "+-* ") || strpbrk(b.text, "+-* ")) && poly_of(a, &p) && poly_of(b, &q) &&
           poly_add_product(&p, &q, &minus) && p.count == 0;
}

static bool is_number(struct mlo_expr e, int64_t number)
{
    return e.kind == MLO_EXPR_NUMBER && e.number == number;
}

/* a + sign * b */
static struct mlo_expr add_scaled(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b, int64_t sign)
{
    const struct term scale = {.k = sign};
    struct poly p, q;
    if (is_number(b, 0))
        return a;
    if (!poly_of(a, &p) || !poly_of(b, &q) || !poly_add_product(&p, &q, &scale))
        return (struct mlo_expr){0};
    return poly_to_expr(arena, &p);
}

struct mlo_expr mlo_expr_add(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b)
{
    return is_number(a, 0) ? b : add_scaled(arena, a, b, 1);
}

struct mlo_expr mlo_expr_sub(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b)
{
    return add_scaled(arena, a, b, -1);
}

struct mlo_expr mlo_expr_mul(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b)
{
    struct poly p, q;
    if (is_number(a, 1) || is_number(b, 1))
        return is_number(a, 1) ? b : a;
    if (!poly_of(a, &p) || !poly_of(b, &q) || !poly_mul(&p, &q, &p))
        return (struct mlo_expr){0};
    return poly_to_expr(arena, &p);
}

static bool term_div(const struct term *a, const struct term *b, struct term *out)
{
    *out = (struct term){0};
    if (b->k == -1 ? a->k == INT64_MIN : a->k % b->k)
        return false;
    out->k = a->k / b->k;
    int j = 0;
    for (int i = 0; i < a->count; i++)
        if (j < b->count && compare_atoms(&a->atoms[i], &b->atoms[j]) == 0)
            j++;
        else
            out->atoms[out->count++] = a->atoms[i];
    return j == b->count;
}

/* Long division; false when something is left over. */
static bool poly_div(const struct poly *a, const struct poly *b, struct poly *out)
{
    struct poly rest = *a, quotient = {0};
    for (int step = 0; rest.count; step++) {
        struct term q;
        if (step > 4 * TERMS_MAX || !term_div(&rest.terms[0], &b->terms[0], &q) ||
            !poly_add_term(&quotient, &q))
            return false;
        if (__builtin_sub_overflow(0, q.k, &q.k) || !poly_add_product(&rest, b, &q))
            return false;
    }
    *out = quotient;
    return true;
}

/* Rounded down: what the divisor divides goes out of the bracket, so that equal results look equal. */
static struct mlo_expr floor_div(struct mlo_arena *arena, const struct poly *a, int64_t by)
{
    struct poly whole = {0}, rest = {0};
    int64_t number;
    for (int i = 0; i < a->count; i++) {
        struct term q = a->terms[i], r = a->terms[i];
        r.k %= by;
        r.k += r.k < 0 ? by : 0;
        q.k = (q.k - r.k) /
              by; /* cannot overflow: r.k and q.k are on the same side, or q.k grows by less than by */
        if (!poly_add_term(&whole, &q) || !poly_add_term(&rest, &r))
            return (struct mlo_expr){0};
    }
    if (!poly_is_number(&rest, &number)) {
        char inside[TEXT_MAX + 1];
        struct poly atom;
        const struct term one = {.k = 1};
        if (poly_write(&rest, inside, sizeof inside) >= sizeof inside)
            return (struct mlo_expr){0};
        const char *text = mlo_arena_printf(arena, "(%s)/%lld", inside, (long long)by);
        if (!text)
            return (struct mlo_expr){0};
        poly_of_atom(&atom, text, (int)strlen(text));
        if (!poly_add_product(&whole, &atom, &one))
            return (struct mlo_expr){0};
    }
    return poly_to_expr(arena, &whole);
}

struct mlo_expr mlo_expr_div(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b)
{
    struct poly p, q;
    if (is_number(b, 1))
        return a;
    if (is_number(b, 0) || !poly_of(a, &p) || !poly_of(b, &q) || !q.count)
        return (struct mlo_expr){0};
    if (poly_div(&p, &q, &p))
        return poly_to_expr(arena, &p);
    if (b.kind != MLO_EXPR_NUMBER || b.number <= 0)
        return (struct mlo_expr){0};
    for (int i = 0; i < p.count; i++)
        if (p.terms[i].k < INT64_MIN / 2)
            return (struct mlo_expr){0};
    return floor_div(arena, &p, b.number);
}

/* The smaller (or larger) one, when their difference is a number; else an atom of both, in a fixed order. */
static struct mlo_expr choose(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b, bool smaller)
{
    struct mlo_expr d = mlo_expr_sub(arena, a, b);
    if (d.kind == MLO_EXPR_NUMBER)
        return (d.number <= 0) == smaller ? a : b;
    if (d.kind == MLO_EXPR_UNKNOWN)
        return d;
    char left[32], right[32];
    snprintf(left, sizeof left, "%lld", (long long)a.number);
    snprintf(right, sizeof right, "%lld", (long long)b.number);
    const char *x = a.kind == MLO_EXPR_TEXT ? a.text : left, *y = b.kind == MLO_EXPR_TEXT ? b.text : right;
    bool swap = b.kind == MLO_EXPR_NUMBER || (a.kind != MLO_EXPR_NUMBER && strcmp(x, y) > 0);
    struct mlo_expr e = {MLO_EXPR_TEXT, 0, NULL};
    e.text = mlo_arena_printf(arena, "%s(%s,%s)", smaller ? "min" : "max", swap ? y : x, swap ? x : y);
    return e.text && strlen(e.text) <= TEXT_MAX ? e : (struct mlo_expr){0};
}

struct mlo_expr mlo_expr_min(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b)
{
    return choose(arena, a, b, true);
}

struct mlo_expr mlo_expr_max(struct mlo_arena *arena, struct mlo_expr a, struct mlo_expr b)
{
    return choose(arena, a, b, false);
}

/* The operands of "min(a,b)" or "max(a,b)". */
static bool operands(const char *text, size_t length, struct mlo_expr out[2], struct mlo_arena *arena)
{
    int depth = 0;
    for (size_t i = 4; i + 1 < length; i++) {
        depth += text[i] == '(' || text[i] == '{' ? 1 : text[i] == ')' || text[i] == '}' ? -1 : 0;
        if (text[i] != ',' || depth)
            continue;
        const char *part[2] = {text + 4, text + i + 1};
        size_t size[2] = {i - 4, length - i - 2};
        for (int k = 0; k < 2; k++) {
            struct poly p;
            out[k] = (struct mlo_expr){0};
            if (poly_read(part[k], size[k], &p))
                out[k] = poly_to_expr(arena, &p);
        }
        return true;
    }
    return false;
}

bool mlo_expr_is_min_of(struct mlo_expr a, struct mlo_expr e)
{
    if (a.kind != MLO_EXPR_TEXT || e.kind != MLO_EXPR_TEXT || strncmp(a.text, "min(", 4) != 0)
        return false;
    size_t n = strlen(a.text), m = strlen(e.text);
    if (n < m + 6 || a.text[n - 1] != ')')
        return false;
    bool last = a.text[n - m - 2] == ',' && memcmp(a.text + n - m - 1, e.text, m) == 0;
    bool first = memcmp(a.text + 4, e.text, m) == 0 && a.text[4 + m] == ',';
    return last || first;
}

/* --- binding ----------------------------------------------------------------------------------------------
 */

static struct mlo_expr bind(struct mlo_arena *arena, struct mlo_expr e, const struct mlo_binding *bindings,
                            size_t count, int depth);

static struct mlo_expr bind_atom(struct mlo_arena *arena, const struct atom *a,
                                 const struct mlo_binding *bindings, size_t count, int depth)
{
    struct mlo_expr self = {MLO_EXPR_TEXT, 0, NULL}, parts[2];
    size_t length = (size_t)a->length;
    for (size_t i = 0; i < count; i++)
        if (strlen(bindings[i].name) == length && memcmp(bindings[i].name, a->at, length) == 0)
            return mlo_expr_number(bindings[i].value);
    if (length > 6 && (memcmp(a->at, "min(", 4) == 0 || memcmp(a->at, "max(", 4) == 0) &&
        operands(a->at, length, parts, arena)) {
        struct mlo_expr x = bind(arena, parts[0], bindings, count, depth + 1);
        struct mlo_expr y = bind(arena, parts[1], bindings, count, depth + 1);
        return choose(arena, x, y, a->at[1] == 'i');
    }
    struct reader r = {a->at, a->at + length, 0};
    if (*a->at == '(' && skip_bracket(&r, '(', ')') && accept(&r, '/')) {
        struct poly p;
        int64_t by;
        const char *slash = r.at - 1;
        if (!read_number(&r, &by) || !poly_read(a->at + 1, (size_t)(slash - a->at) - 2, &p))
            return (struct mlo_expr){0};
        struct mlo_expr inner = bind(arena, poly_to_expr(arena, &p), bindings, count, depth + 1);
        return mlo_expr_div(arena, inner, mlo_expr_number(by));
    }
    self.text = mlo_arena_strndup(arena, a->at, length);
    return self.text ? self : (struct mlo_expr){0};
}

static struct mlo_expr bind(struct mlo_arena *arena, struct mlo_expr e, const struct mlo_binding *bindings,
                            size_t count, int depth)
{
    struct poly p;
    if (e.kind != MLO_EXPR_TEXT || depth > DEPTH_MAX || !poly_of(e, &p))
        return depth > DEPTH_MAX ? (struct mlo_expr){0} : e;
    struct mlo_expr sum = mlo_expr_number(0);
    for (int i = 0; i < p.count; i++) {
        struct mlo_expr product = mlo_expr_number(p.terms[i].k);
        for (int f = 0; f < p.terms[i].count; f++)
            product =
                mlo_expr_mul(arena, product, bind_atom(arena, &p.terms[i].atoms[f], bindings, count, depth));
        sum = mlo_expr_add(arena, sum, product);
    }
    return sum;
}

struct mlo_expr mlo_expr_bind(struct mlo_arena *arena, struct mlo_expr e, const struct mlo_binding *bindings,
                              size_t count)
{
    for (size_t i = 0; e.kind == MLO_EXPR_TEXT && i < count; i++)
        if (strcmp(bindings[i].name, e.text) == 0)
            return mlo_expr_number(bindings[i].value);
    return bind(arena, e, bindings, count, 0);
}
