/* Which model may stand in the place of which. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/signature.h"
#include "tests/cm.h"

static json_t *doc(const char *text)
{
    json_error_t e;
    json_t *out = json_loads(text, 0, &e);
    if (!out)
        fail_msg("%s: %s", text, e.text);
    return out;
}

#define V(name, type, shape) "{\"name\":\"" name "\",\"type\":\"" type "\",\"shape\":" shape "}"
#define SIG(in, out) "{\"inputs\":[" in "],\"outputs\":[" out "],\"labels\":null}"
#define LABELS(names) "{\"inputs\":[],\"outputs\":[],\"labels\":{\"count\":2,\"names\":" names "}}"
#define X(shape) V("x", "float32", shape)
#define Y(shape) V("y", "float32", shape)

static void test_signature__says_the_first_difference(void **state)
{
    static const struct {
        const char *present, *next, *why; /* NULL: compatible */
    } cases[] = {
        {SIG(X("[1,3]"), Y("[1,10]")), SIG(X("[1,3]"), Y("[1,10]")), NULL},
        /* a batch that becomes free, and its output with it */
        {SIG(X("[1,3]"), Y("[1,10]")), SIG(X("[\"N\",3]"), Y("[\"N\",10]")), NULL},
        {SIG(X("[\"N\",3]"), Y("[\"N\",10]")), SIG(X("[1,3]"), Y("[1,10]")),
         "input 'x' takes 1 at dimension 0, and took N"},
        {SIG(X("[1,3]"), Y("[1,10]")), SIG(X("[2,3]"), Y("[1,10]")),
         "input 'x' takes 2 at dimension 0, and took 1"},
        /* other names for the same */
        {SIG(X("[\"N\",3]"), Y("[\"N\",10]")), SIG(X("[\"batch\",3]"), Y("[\"batch\",10]")), NULL},
        /* what was free on its own is now tied to another */
        {SIG(X("[\"H\",\"W\"]"), Y("[1]")), SIG(X("[\"S\",\"S\"]"), Y("[1]")),
         "input 'x' takes S at dimension 1, and took W"},
        {SIG(X("[\"S\",\"S\"]"), Y("[1]")), SIG(X("[\"H\",\"W\"]"), Y("[1]")), NULL},
        {SIG(X("[null,null]"), Y("[1]")), SIG(X("[\"S\",\"S\"]"), Y("[1]")),
         "input 'x' takes S at dimension 1, and took any"},
        {SIG(X("[7,7]"), Y("[1]")), SIG(X("[\"S\",\"S\"]"), Y("[1]")), NULL},
        {SIG(X("[7,8]"), Y("[1]")), SIG(X("[\"S\",\"S\"]"), Y("[1]")),
         "input 'x' takes S at dimension 1, and took 8"},
        {SIG(X("[1,3]"), Y("[1]")), SIG(X("null"), Y("[1]")), NULL},
        {SIG(X("null"), Y("[1]")), SIG(X("[1,3]"), Y("[1]")),
         "input 'x' has a fixed number of dimensions, and had any"},
        {SIG(X("[1,3]"), Y("[1]")), SIG(X("[1,3,1]"), Y("[1]")), "input 'x' has 3 dimensions, and had 2"},
        {SIG(X("[1]"), Y("[1]")), SIG(V("x", "float16", "[1]"), Y("[1]")),
         "input 'x' is float16, and was float32"},
        {SIG(X("[1]"), Y("[1]")), SIG(V("z", "float32", "[1]"), Y("[1]")), "input 'x' is gone"},
        {SIG(X("[1]"), Y("[1]")), SIG(X("[1]") "," V("z", "float32", "[1]"), Y("[1]")),
         "input 'z' is new, and must be given"},
        {SIG(X("[1]"), Y("[1]")),
         SIG(X("[1]") ",{\"name\":\"z\",\"type\":\"float32\",\"shape\":[1],\"optional\":true}", Y("[1]")),
         NULL},
        {SIG("{\"name\":\"x\",\"type\":\"float32\",\"shape\":[1],\"optional\":true}", Y("[1]")),
         SIG(X("[1]"), Y("[1]")), "input 'x' must be given, and could be left out"},
        /* the order of inputs does not matter, that of outputs does */
        {SIG(X("[1]") "," V("z", "int64", "[]"), Y("[1]")), SIG(V("z", "int64", "[]") "," X("[1]"), Y("[1]")),
         NULL},
        {SIG(X("[1]"), Y("[1]") "," V("z", "float32", "[1]")),
         SIG(X("[1]"), V("z", "float32", "[1]") "," Y("[1]")), "output 0 is 'z', and was 'y'"},
        {SIG(X("[1]"), Y("[1]") "," V("z", "float32", "[1]")), SIG(X("[1]"), Y("[1]")), "output 'z' is gone"},
        {SIG(X("[1]"), Y("[1]")), SIG(X("[1]"), Y("[1]") "," V("z", "float32", "[1]")), "output 'z' is new"},
        {SIG(X("[1]"), Y("[1,10]")), SIG(X("[1]"), Y("[1,12]")),
         "output 'y' has 12 at dimension 1, and had 10"},
        {SIG(X("[1]"), Y("[1,10]")), SIG(X("[1]"), Y("[1,\"K\"]")),
         "output 'y' has K at dimension 1, and had 10"},
        {SIG(X("[\"N\"]"), Y("[\"N\"]")), SIG(X("[\"N\"]"), Y("[\"M\"]")),
         "output 'y' has M at dimension 0, and had N"},
        {SIG(X("[1]"), Y("[\"M\"]")), SIG(X("[1]"), Y("[\"K\"]")), NULL}, /* nothing was promised */
        {SIG(X("[1]"), Y("[null]")), SIG(X("[1]"), Y("[5]")), NULL},
        {SIG(X("[1]"), Y("null")), SIG(X("[1]"), Y("[5]")), NULL},
        {SIG(X("[1]"), Y("[5]")), SIG(X("[1]"), Y("null")),
         "output 'y' has any number of dimensions, and had a fixed one"},
        {LABELS("[\"cat\",\"dog\"]"), LABELS("[\"cat\",\"dog\"]"), NULL},
        {LABELS("[\"cat\",\"dog\"]"), LABELS("[\"cat\",\"dog\",\"owl\"]"), NULL},
        {LABELS("[\"cat\",\"dog\"]"), LABELS("[\"dog\",\"cat\"]"), "label 0 is 'dog', and was 'cat'"},
        {LABELS("[\"cat\",\"dog\"]"), LABELS("[\"cat\"]"), "label 1, 'dog', is gone"},
        {LABELS("[\"cat\",\"dog\"]"), SIG("", ""), "its label set is gone: there were 2 labels"},
        {SIG("", ""), LABELS("[\"cat\"]"), NULL},
        {LABELS("[\"cat\"]"), "{\"inputs\":[],\"outputs\":[],\"labels\":{\"unreadable\":\"x\"}}",
         "the labels that are new cannot be read"},
    };
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(cases); i++) {
        json_t *present = doc(cases[i].present), *next = doc(cases[i].next);
        char why[300] = "";
        bool fine = mlo_signature_compatible(present, next, why, sizeof why);
        if (fine != !cases[i].why || (cases[i].why && strcmp(why, cases[i].why) != 0))
            fail_msg("case %zu: %s '%s' instead of '%s'", i, fine ? "compatible" : "not", why,
                     cases[i].why ? cases[i].why : "compatible");
        json_decref(present);
        json_decref(next);
    }
}

static void test_signature__has_a_form(void **state)
{
    static const char *const bad[] = {
        "{}",
        "[]",
        "{\"inputs\":[]}",
        "{\"inputs\":[],\"outputs\":[1]}",
        "{\"inputs\":[{\"name\":\"x\",\"type\":\"t\",\"shape\":[-1]}],\"outputs\":[]}",
        "{\"inputs\":[{\"name\":\"x\",\"type\":\"t\",\"shape\":[\"\"]}],\"outputs\":[]}",
        "{\"inputs\":[{\"name\":\"x\",\"type\":\"t\",\"shape\":[1.5]}],\"outputs\":[]}",
        "{\"inputs\":[{\"type\":\"t\",\"shape\":[1]}],\"outputs\":[]}",
        "{\"inputs\":[],\"outputs\":[],\"labels\":[]}"};
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        struct mlo_error err = {0};
        json_t *value = doc(bad[i]);
        assert_int_equal(mlo_signature_check(value, &err), MLO_EINVAL);
        json_decref(value);
    }
    struct mlo_error err = {0};
    json_t *value = doc(SIG(X("[1,\"N\",null]"), Y("null")));
    assert_int_equal(mlo_signature_check(value, &err), MLO_OK);
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signature__says_the_first_difference),
        cmocka_unit_test(test_signature__has_a_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
