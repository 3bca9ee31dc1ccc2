/* The audit log's chain as the client checks it. */
#include <string.h>

#include "api/cli/core/chain.h"
#include "tests/cm.h"

enum { COUNT = 6 };

struct made {
    char *body[COUNT];
    struct mlo_digest prev[COUNT], hash[COUNT];
    int64_t seq[COUNT];
    size_t count;
};

static void link_up(struct made *m, size_t from)
{
    for (size_t i = from; i < m->count; i++) {
        struct mlo_buf all = MLO_BUF_INIT;
        if (i)
            m->prev[i] = m->hash[i - 1];
        mlo_buf_append(&all, m->prev[i].bytes, sizeof m->prev[i].bytes);
        for (int b = 7; b >= 0; b--)
            mlo_buf_putc(&all, (char)((uint64_t)m->seq[i] >> (8 * b)));
        mlo_buf_puts(&all, m->body[i]);
        mlo_digest_of(mlo_buf_str(&all), all.len, &m->hash[i]);
        mlo_buf_clear(&all);
    }
}

static struct made make(void)
{
    static char bodies[COUNT][16];
    struct made m = {.count = COUNT};
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(bodies[i], sizeof bodies[i], "body\n%zu", i + 1);
        m.body[i] = bodies[i];
        m.seq[i] = (int64_t)i + 1;
    }
    link_up(&m, 0);
    return m;
}

static void put(const struct made *m, size_t i, struct mlo_buf *out)
{
    char prev[MLO_DIGEST_TEXT_SIZE], hash[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_hex(&m->prev[i], prev);
    mlo_digest_hex(&m->hash[i], hash);
    mlo_buf_printf(out, "%lld %s %s %zu\n%s\n", (long long)m->seq[i], prev, hash, strlen(m->body[i]),
                   m->body[i]);
}

static enum mlo_status count_entry(void *arg, int64_t seq, const char *body, size_t size,
                                   const struct mlo_digest *hash, struct mlo_error *err)
{
    int *count = arg;
    MLO_UNUSED(hash);
    MLO_UNUSED(err);
    assert_int_equal(seq, ++*count);
    assert_memory_equal(body, "body\n", 5);
    assert_int_equal(size, 6);
    return MLO_OK;
}

/* Checks all but `without`, in answers of two entries; the caller clears. */
static struct mlo_chain check(const struct made *m, size_t without, int64_t remembered, const char *hash)
{
    struct mlo_error err = {0};
    struct mlo_chain chain;
    struct mlo_buf answer = MLO_BUF_INIT;
    assert_ok(mlo_chain_begin(&chain, &err));
    chain.remembered_seq = remembered;
    snprintf(chain.remembered, sizeof chain.remembered, "%s", hash ? hash : "");
    for (size_t i = 0; i < m->count; i++) {
        if (i != without)
            put(m, i, &answer);
        if (i % 2 == 1 || i + 1 == m->count) {
            assert_ok(mlo_chain_check(&chain, mlo_buf_str(&answer), answer.len, NULL, NULL, &err));
            mlo_buf_reset(&answer);
        }
    }
    mlo_chain_end(&chain);
    mlo_buf_clear(&answer);
    mlo_chain_clear(&chain);
    return chain;
}

static void test_chain__what_holds_holds(void **state)
{
    MLO_UNUSED(state);
    struct made m = make();
    struct mlo_error err = {0};
    struct mlo_buf answer = MLO_BUF_INIT;
    struct mlo_chain chain = check(&m, COUNT, 0, NULL);
    char third[MLO_DIGEST_TEXT_SIZE];
    int seen = 0;
    assert_int_equal(chain.bad_seq, 0);
    assert_int_equal(chain.entries, COUNT);
    assert_int_equal(chain.last, COUNT);
    assert_true(mlo_digest_eq(&chain.hash, &m.hash[COUNT - 1]));
    assert_int_equal(check(&m, COUNT, 3, mlo_digest_text(&m.hash[2], third)).bad_seq, 0);
    for (size_t i = 0; i < COUNT; i++)
        put(&m, i, &answer);
    assert_ok(mlo_chain_begin(&chain, &err));
    assert_ok(mlo_chain_check(&chain, mlo_buf_str(&answer), answer.len, count_entry, &seen, &err));
    assert_int_equal(seen, COUNT);
    mlo_chain_clear(&chain);
    mlo_buf_clear(&answer);
}

static void assert_bad(struct mlo_chain chain, int64_t seq, const char *said)
{
    if (chain.bad_seq != seq || !strstr(chain.problem, said))
        fail_msg("entry %lld: %s; expected entry %lld: %s", (long long)chain.bad_seq, chain.problem,
                 (long long)seq, said);
}

static void test_chain__what_was_done_to_it_is_named(void **state)
{
    MLO_UNUSED(state);
    struct made m = make();
    char hash[MLO_DIGEST_TEXT_SIZE];
    mlo_digest_text(&m.hash[3], hash);
    assert_bad(check(&m, 0, 0, NULL), 1, "entries up to 1 are missing");
    assert_bad(check(&m, 3, 0, NULL), 4, "entry 4 is missing");
    m.body[2] = "body\n9"; /* changed */
    assert_bad(check(&m, COUNT, 0, NULL), 3, "does not hash to its hash");
    link_up(&m, 2); /* and all that follows with it: only who remembers can tell */
    assert_int_equal(check(&m, COUNT, 0, NULL).bad_seq, 0);
    assert_bad(check(&m, COUNT, 4, hash), 4, "the history was rewritten");
    m = make();
    m.body[2] = "body\n9"; /* changed with its hash, but not the entry behind it */
    m.count = 3;
    link_up(&m, 2);
    m.count = COUNT;
    assert_bad(check(&m, COUNT, 0, NULL), 3, "not the one that entry 4 continues from");
    m = make();
    m.count = 3; /* cut */
    assert_bad(check(&m, COUNT, 4, hash), 4, "it was cut");
    m = make();
    m.prev[0].bytes[0] = 1; /* the end of another chain */
    link_up(&m, 0);
    assert_bad(check(&m, COUNT, 0, NULL), 1, "continues from something that is not there");
}

static void test_chain__no_answer_of_ours_is_refused(void **state)
{
    MLO_UNUSED(state);
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    static const char *const bad[] = {"x",
                                      "1\n",
                                      "1 - - 5\n",
                                      "1 - - 5\nabcde",
                                      "1 - - 5\nabcdef\n",
                                      "1 - - 6\nabcde\n",
                                      "1 - - 99999999999999999999999\nabcde\n",
                                      "1 - - -1\nabcde\n",
                                      "1 - 00 5\nabcde\n",
                                      "\n7 ",
                                      "1 - - \n7 ",
                                      "-1 - - 1\na\n",
                                      "0 - - 1\na\n", /* entries are numbered from 1 */
                                      "9223372036854775807 - - 1\na\n",
                                      "1 - - 5 \nabcde\n",
                                      "\n",
                                      "1 - - 1\na\n1 - - 1\na\n"};
    struct mlo_error err = {0};
    struct mlo_chain chain;
    char good[200];
    for (size_t i = 0; i < MLO_COUNT(bad); i++) {
        assert_ok(mlo_chain_begin(&chain, &err));
        if (mlo_chain_check(&chain, bad[i], strlen(bad[i]), NULL, NULL, &err) != MLO_EFORMAT)
            fail_msg("accepted: %s", bad[i]);
        mlo_chain_clear(&chain);
    }
    snprintf(good, sizeof good, "1 %s - 1\na\n", zeros);
    assert_ok(mlo_chain_begin(&chain, &err));
    assert_ok(mlo_chain_check(&chain, good, strlen(good), NULL, NULL, &err));
    assert_bad(chain, 1, "does not hash to its hash");
    mlo_chain_clear(&chain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain__what_holds_holds),
        cmocka_unit_test(test_chain__what_was_done_to_it_is_named),
        cmocka_unit_test(test_chain__no_answer_of_ours_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
