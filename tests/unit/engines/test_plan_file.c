/* Plans as files: the signature, the cache, the fingerprint, and bytes that are no plan. */
#include "qhelpers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engines/cpu/cpu_impl.h"
#include "engines/plans_impl.h"

struct place {
    char *dir, *plan, *cache;
    struct mlo_sign_key *key;
    struct net net;
    struct mlo_tensor x, want;
    struct mlo_plan_source source;
};

static const struct mlo_engine *cpu(void)
{
    const struct mlo_engine *e;
    MUST(mlo_engine_find("cpu", &e, err));
    return e;
}

/* A net with own kernels, oneDNN, an interpreted node that reads a large constant, and a quantized part. */
static struct net small_net(void)
{
    static const struct conv_spec conv = {4, 8, 3, 1, 1, 1, 1, 6, true};
    struct net n = net_new(3);
    struct mlo_value *x = net_input(&n, "x", 4, (int64_t[]){-1, 4, 6, 6});
    struct mlo_value *y = net_op(&n, "Relu", net_conv(&n, x, &conv), NULL, NULL);
    y = qdq(&n, y, 0.02f, 3, MLO_UINT8);
    y = net_op(&n, "Sigmoid", y, NULL, NULL);
    y = net_op(&n, "Mod", y, net_floats(&n, 4, (int64_t[]){1, 8, 6, 6}, 2.0f), NULL);
    assert_true(mlo_node_set_i(y->producer, "fmod", 1));
    y = net_op(&n, "Softmax", y, NULL, NULL);
    net_finish(&n, y);
    return n;
}

static void write_plan(struct place *p, const char *path, const struct mlo_sign_key *key)
{
    struct mlo_plan *plan = NULL;
    struct mlo_compile_options o = {.batch = p->source.batch, .threads = 1};
    MUST(cpu()->compile(p->net.model, &o, &plan, err));
    MUST(mlo_plan_write(cpu(), plan, &p->source, key, path, err));
    cpu()->free_plan(plan);
}

struct sink {
    struct mlo_buf bytes;
    int fd; /* -1, or a file that is changed once the first bytes were read */
};

static enum mlo_status keep(void *arg, const void *bytes, size_t size, struct mlo_error *problem)
{
    struct sink *s = arg;
    MLO_UNUSED(problem);
    mlo_buf_append(&s->bytes, bytes, size);
    if (s->fd >= 0)
        assert_int_equal(pwrite(s->fd, "forged", 6, 40), 6);
    return MLO_OK;
}

/* Signs the file anew: what it says of itself is believed. */
static void sign(const char *path, const struct mlo_sign_key *key)
{
    struct mlo_plan_info info;
    struct sink s = {.bytes = MLO_BUF_INIT, .fd = -1};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    MUST(mlo_plan_inspect(path, false, &info, err));
    struct mlo_plan_signing how = {
        .key = key, .fingerprint = info.fingerprint, .max_bytes = 1 << 26, .sink = keep, .arg = &s};
    MUST(mlo_plan_sign(fd, path, &how, err));
    MUST(mlo_fs_write_atomic(path, s.bytes.data, s.bytes.len, err));
    close(fd);
    mlo_buf_clear(&s.bytes);
    mlo_plan_info_clear(&info);
}

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    MUST(mlo_fs_tempdir(NULL, "mlopt-plans-", &p->dir, err));
    setenv("XDG_CONFIG_HOME", p->dir, 1);
    setenv("XDG_CACHE_HOME", p->dir, 1);
    p->plan = mlo_fs_join(p->dir, "net.plan", NULL);
    p->cache = mlo_fs_join(p->dir, "mlopt", "plans", NULL);
    MUST(mlo_plan_own_key(NULL, &p->key, err));
    p->net = small_net();
    p->x = random_tensor(4, (int64_t[]){2, 4, 6, 6}, 5);
    p->source = (struct mlo_plan_source){.threads = 1, .batch = 2};
    mlo_digest_of("the model", 9, &p->source.model);
    struct mlo_compile_options o = {.batch = 2, .threads = 1};
    p->want = run_model("cpu", p->net.model, &o, &p->x, NULL);
    write_plan(p, p->plan, p->key);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;
    mlo_isa_override(-1);
    unsetenv(MLO_PLAN_TRUST_ENV);
    mlo_fs_remove_tree(p->dir);
    mlo_sign_key_free(p->key);
    mlo_model_free(p->net.model);
    mlo_tensor_clear(&p->x);
    mlo_tensor_clear(&p->want);
    free(p->dir);
    free(p->plan);
    free(p->cache);
    free(p);
    return 0;
}

static void assert_runs(const struct place *p, const char *path, const struct mlo_plan_open_options *options)
{
    struct mlo_plan_file *file = NULL;
    struct mlo_program *program = NULL;
    struct mlo_tensor out = {0};
    MUST(mlo_plan_open(path, options, &file, err));
    const struct mlo_graph *g = mlo_plan_file_model(file)->graph;
    assert_int_equal(g->input_count, 1);
    assert_string_equal(g->inputs[0]->name, "x");
    assert_int_equal(g->output_count, 1);
    MUST(cpu()->load(mlo_plan_file_plan(file), &program, err));
    MUST(cpu()->run(program, &p->x, &out, err));
    assert_int_equal(out.size_bytes, p->want.size_bytes);
    assert_memory_equal(out.data, p->want.data, out.size_bytes);
    cpu()->unload(program);
    mlo_plan_close(file);
    mlo_tensor_clear(&out);
}

static void assert_refused(const char *path, const struct mlo_plan_open_options *options,
                           enum mlo_status status, const char *part)
{
    struct mlo_plan_file *file = NULL;
    struct mlo_error problem = {0};
    assert_int_equal(mlo_plan_open(path, options, &file, &problem), status);
    if (!strstr(problem.message, part))
        fail_msg("'%s' is not in: %s", part, problem.message);
}

static struct mlo_buf read_file(const char *path)
{
    struct mlo_buf bytes = MLO_BUF_INIT;
    MUST(mlo_fs_read(path, 1 << 26, &bytes, err));
    return bytes;
}

static void test_plan__runs_as_compiled(void **state)
{
    struct place *p = *state;
    assert_true(mlo_plan_is_file(p->plan));
    assert_runs(p, p->plan, NULL);
    assert_runs(p, p->plan, NULL); /* out of the cache */
}

/* A plan that was verified once is mapped from the cache: the file's own content is read no more. */
static void test_plan__is_verified_once(void **state)
{
    struct place *p = *state;
    struct mlo_plan_info info;
    assert_runs(p, p->plan, NULL);
    MUST(mlo_plan_inspect(p->plan, true, &info, err));
    struct mlo_buf bytes = read_file(p->plan);
    bytes.data[info.content_bytes - 100] ^= 1;
    MUST(mlo_fs_write_atomic(p->plan, bytes.data, bytes.len, err));
    assert_runs(p, p->plan, NULL);
    mlo_fs_remove_tree(p->cache);
    assert_refused(p->plan, NULL, MLO_EDIGEST, "changed after it was signed");
    mlo_plan_info_clear(&info);
    mlo_buf_clear(&bytes);
}

static void test_plan__weights_are_not_copied(void **state)
{
    struct place *p = *state;
    struct mlo_plan *plan = NULL;
    struct plan_copy copy;
    struct mlo_compile_options o = {.batch = 2, .threads = 1};
    size_t mapped = 0;
    MUST(cpu()->compile(p->net.model, &o, &plan, err));
    MUST(plan_copy(cpu(), plan, &copy, err));
    assert_non_null(copy.plan);
    for (int i = 0; i < copy.plan->slot_count; i++) {
        const struct cpu_slot *s = &copy.plan->slots[i];
        if (s->kind != CPU_SLOT_CONST || !s->data)
            continue;
        assert_false(s->owned);
        assert_true((const char *)s->data >= (char *)copy.bytes &&
                    (const char *)s->data + s->size_bytes <= (char *)copy.bytes + copy.size);
        assert_int_equal((uintptr_t)s->data % 64, 0);
        mapped += s->size_bytes;
    }
    assert_true(mapped > 8 * 4 * 9 * sizeof(float));
    const struct mlo_graph *g = copy.plan->model->graph; /* and what an interpreted node reads */
    size_t large = 0;
    for (int i = 0; i < g->value_count; i++)
        if (g->values[i]->constant && g->values[i]->constant->size_bytes > 1024) {
            const char *at = g->values[i]->constant->data;
            assert_true(at >= (char *)copy.bytes && at < (char *)copy.bytes + copy.size);
            large++;
        }
    assert_int_equal(large, 1);
    plan_copy_free(cpu(), &copy);
    cpu()->free_plan(plan);
}

static void test_plan__truncated_is_a_format_error(void **state)
{
    struct place *p = *state;
    struct mlo_buf bytes = read_file(p->plan);
    const size_t sizes[] = {0, 4, 31, 100, 4096, bytes.len / 2, bytes.len - 137, bytes.len - 1};
    for (size_t i = 0; i < MLO_COUNT(sizes); i++) {
        MUST(mlo_fs_write_atomic(p->plan, bytes.data, sizes[i], err));
        assert_refused(p->plan, NULL, MLO_EFORMAT, i < 3 ? "no compiled plan" : "cut off or damaged");
    }
    mlo_buf_clear(&bytes);
}

/* As when somebody makes it shorter between the look at its head and the reading. */
static void test_plan__that_becomes_shorter_is_an_error(void **state)
{
    struct place *p = *state;
    struct mlo_plan_info info;
    struct mlo_digest digest;
    struct mlo_error problem = {0};
    MUST(mlo_plan_inspect(p->plan, true, &info, err));
    int fd = open(p->plan, O_RDWR | O_CLOEXEC);
    MUST(plan_hash(fd, info.content_bytes, NULL, NULL, &digest, err));
    assert_true(mlo_digest_eq(&digest, &info.digest));
    assert_int_equal(ftruncate(fd, 100), 0);
    assert_int_equal(plan_hash(fd, info.content_bytes, NULL, NULL, &digest, &problem), MLO_EIO);
    assert_non_null(strstr(problem.message, "shorter"));
    close(fd);
    mlo_plan_info_clear(&info);
}

static void test_plan__changed_bytes_are_refused(void **state)
{
    struct place *p = *state;
    struct mlo_buf bytes = read_file(p->plan);
    const struct {
        size_t at;
        enum mlo_status status;
        const char *part;
    } flips[] = {
        {40, MLO_EDIGEST, "changed"},               /* the fingerprint */
        {4200, MLO_EDIGEST, "changed"},             /* the engine's part */
        {bytes.len - 137, MLO_EDIGEST, "changed"},  /* the last constant */
        {bytes.len - 1, MLO_EAUTH, "wrong"},        /* the signature */
        {bytes.len - 70, MLO_EAUTH, "wrong"},       /* the digest that it is over */
        {bytes.len - 110, MLO_EAUTH, "not trusted"} /* the signer */
    };
    for (size_t i = 0; i < MLO_COUNT(flips); i++) {
        bytes.data[flips[i].at] ^= 4;
        MUST(mlo_fs_write_atomic(p->plan, bytes.data, bytes.len, err));
        assert_refused(p->plan, NULL, flips[i].status, flips[i].part);
        bytes.data[flips[i].at] ^= 4;
    }
    mlo_buf_clear(&bytes);
}

/* What is signed is what was read and checked, however the file changes under the signer's hands. */
static void test_plan__is_signed_as_it_was_read(void **state)
{
    struct place *p = *state;
    struct mlo_plan_info info;
    struct mlo_error problem = {0};
    struct sink s = {.bytes = MLO_BUF_INIT};
    MUST(mlo_plan_inspect(p->plan, true, &info, err));
    s.fd = open(p->plan, O_RDWR | O_CLOEXEC);
    struct mlo_plan_signing how = {.key = p->key,
                                   .fingerprint = info.fingerprint,
                                   .max_bytes = info.file_bytes,
                                   .sink = keep,
                                   .arg = &s};
    MUST(mlo_plan_sign(s.fd, "net.plan", &how, err));
    MUST(mlo_fs_write_atomic(p->plan, s.bytes.data, s.bytes.len, err));
    assert_runs(p, p->plan, NULL);
    mlo_buf_reset(&s.bytes);
    assert_int_not_equal(mlo_plan_sign(s.fd, "net.plan", &how, &problem), MLO_OK); /* now it is another */
    close(s.fd);
    s.fd = -1;
    int fd = open(p->plan, O_RDONLY | O_CLOEXEC);
    json_t *other = json_pack("{s:s}", "model", "another");
    how.fingerprint = other;
    assert_int_equal(mlo_plan_sign(fd, "net.plan", &how, &problem), MLO_EFORMAT);
    assert_non_null(strstr(problem.message, "another fingerprint"));
    how.fingerprint = info.fingerprint;
    how.max_bytes = info.file_bytes - 1;
    s.bytes.len = 0;
    assert_int_equal(mlo_plan_sign(fd, "net.plan", &how, &problem), MLO_ETOOBIG);
    assert_int_equal(s.bytes.len, 0); /* not even begun */
    close(fd);
    json_decref(other);
    mlo_buf_clear(&s.bytes);
    mlo_plan_info_clear(&info);
}

static void test_plan__only_trusted_keys_count(void **state)
{
    struct place *p = *state;
    char *other = mlo_fs_join(p->dir, "other.key", NULL),
         *list = mlo_fs_join(p->dir, "mlopt", "plan-trust", NULL);
    char text[MLO_PUBLIC_KEY_TEXT_SIZE];
    struct mlo_sign_key *key = NULL;
    write_plan(p, p->plan, NULL);
    assert_refused(p->plan, NULL, MLO_EAUTH, "not signed");
    MUST(mlo_sign_key_create(other, &key, err));
    sign(p->plan, key);
    assert_refused(p->plan, NULL, MLO_EAUTH, "not trusted");
    struct mlo_plan_open_options trusting = {.trusted = mlo_sign_key_public(key), .trusted_count = 1};
    assert_runs(p, p->plan, &trusting);
    assert_refused(p->plan, NULL, MLO_EAUTH, "not trusted"); /* that it is in the cache changes nothing */
    struct mlo_buf line = MLO_BUF_INIT;
    mlo_buf_printf(&line, "# who we know\n%s  the build farm\n",
                   mlo_public_key_text(&trusting.trusted[0], text));
    MUST(mlo_fs_write_atomic(list, line.data, line.len, err));
    chmod(list, 0600);
    assert_runs(p, p->plan, NULL);
    chmod(list, 0666);
    assert_refused(p->plan, NULL, MLO_EFORBIDDEN, "others can change");
    unlink(list);
    setenv(MLO_PLAN_TRUST_ENV, text, 1);
    assert_runs(p, p->plan, NULL);
    sign(p->plan, p->key); /* signed anew */
    unsetenv(MLO_PLAN_TRUST_ENV);
    assert_runs(p, p->plan, NULL);
    mlo_buf_clear(&line);
    mlo_sign_key_free(key);
    free(other);
    free(list);
}

static void test_plan__keys_and_cache_are_private(void **state)
{
    struct place *p = *state;
    char *own = mlo_fs_join(p->dir, "mlopt", "plan.key", NULL);
    struct mlo_sign_key *key = NULL;
    struct mlo_error problem = {0};
    struct stat st;
    assert_int_equal(stat(own, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    chmod(own, 0644);
    assert_int_equal(mlo_sign_key_load(own, &key, &problem), MLO_EFORBIDDEN);
    assert_int_equal(mlo_plan_own_key(own, &key, NULL), MLO_EFORBIDDEN);
    assert_int_equal(mlo_plan_own_key("/nonexistent/plan.key", &key, NULL), MLO_ENOTFOUND);
    chmod(own, 0600);
    assert_runs(p, p->plan, NULL);
    assert_int_equal(stat(p->cache, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    free(own);
}

/* Where nothing can be kept, or others could have put it there, the cache is left alone: the plan runs, is
 * checked each time, and why is said. */
static void test_plan__without_a_cache_is_checked_each_time(void **state)
{
    struct place *p = *state;
    struct mlo_error warning = {0};
    struct mlo_plan_open_options options = {.warning = &warning};
    char *other = mlo_fs_join(p->dir, "elsewhere", NULL);
    assert_runs(p, p->plan, &options);
    assert_int_equal(warning.status, MLO_OK);
    struct mlo_buf bytes = read_file(p->plan), changed = MLO_BUF_INIT;
    mlo_buf_append(&changed, bytes.data, bytes.len);
    changed.data[4200] ^= 1;
    for (int kind = 0; kind < 4; kind++) {
        static const char *const why[] = {"not this user's alone", "not this user's alone", "plans", "plans"};
        switch (kind) {
        case 0:
            assert_int_equal(chmod(p->cache, 0770), 0);
            break;
        case 1:
            assert_int_equal(chmod(p->cache, 0700), 0);
            if (geteuid() != 0 || chown(p->cache, 65534, 65534) != 0)
                continue; /* it takes root to give a folder away */
            break;
        case 2: /* a link to what may be anybody's */
            assert_int_equal(rename(p->cache, other), 0);
            assert_int_equal(symlink(other, p->cache), 0);
            break;
        default: /* no folder can be made */
            unlink(p->cache);
            MUST(mlo_fs_write_atomic(p->cache, "x", 1, err));
        }
        warning = (struct mlo_error){0};
        assert_runs(p, p->plan, &options);
        assert_int_not_equal(warning.status, MLO_OK);
        if (!strstr(warning.message, why[kind]))
            fail_msg("'%s' is not in: %s", why[kind], warning.message);
        assert_runs(p, p->plan, NULL);
        MUST(mlo_fs_write_atomic(p->plan, changed.data, changed.len, err));
        assert_refused(p->plan, &options, MLO_EDIGEST, "changed after it was signed");
        MUST(mlo_fs_write_atomic(p->plan, bytes.data, bytes.len, err));
    }
    mlo_fs_remove_tree(other);
    free(other);
    mlo_buf_clear(&bytes);
    mlo_buf_clear(&changed);
}

static char *cached_path(const struct place *p)
{
    struct mlo_plan_info info;
    char hex[MLO_DIGEST_TEXT_SIZE], name[MLO_DIGEST_TEXT_SIZE + 8];
    MUST(mlo_plan_inspect(p->plan, true, &info, err));
    snprintf(name, sizeof name, "%s.plan", mlo_digest_hex(&info.digest, hex));
    mlo_plan_info_clear(&info);
    return mlo_fs_join(p->cache, name, NULL);
}

/* What is found damaged in the cache is made again of the plan's file. */
static void test_plan__damaged_copies_are_made_again(void **state)
{
    struct place *p = *state;
    assert_runs(p, p->plan, NULL);
    char *path = cached_path(p);
    struct mlo_buf whole = read_file(path);
    const size_t at[] = {0, 9, 33, 4096, 4096 + 16};
    for (size_t i = 0; i <= MLO_COUNT(at); i++) {
        struct mlo_error warning = {0};
        struct mlo_plan_open_options options = {.warning = &warning};
        if (i < MLO_COUNT(at))
            whole.data[at[i]] ^= 0x15;
        MUST(mlo_fs_write_atomic(path, whole.data, whole.len - (i == MLO_COUNT(at)), err));
        assert_int_equal(chmod(path, 0600), 0);
        if (i < MLO_COUNT(at))
            whole.data[at[i]] ^= 0x15;
        assert_runs(p, p->plan, &options);
        assert_int_equal(warning.status, MLO_OK);
        struct mlo_buf again = read_file(path);
        assert_int_equal(again.len, whole.len);
        assert_memory_equal(again.data, whole.data, whole.len);
        mlo_buf_clear(&again);
    }
    mlo_buf_clear(&whole);
    free(path);
}

/* A plan that is as it was signed, and yet none: what to do is not to check a model. */
static void test_plan__that_does_not_restore_says_what_to_do(void **state)
{
    struct place *p = *state;
    struct mlo_plan_info info;
    struct mlo_plan_file *file = NULL;
    MUST(mlo_plan_inspect(p->plan, true, &info, err));
    struct mlo_buf bytes = read_file(p->plan);
    size_t refused = 0;
    for (size_t at = 4096; at < info.content_bytes; at += 61) {
        struct mlo_error problem = {0};
        bytes.data[at] ^= 0x15;
        MUST(mlo_fs_write_atomic(p->plan, bytes.data, bytes.len, err));
        sign(p->plan, p->key);
        bytes.data[at] ^= 0x15;
        if (mlo_plan_open(p->plan, NULL, &file, &problem) == MLO_EFORMAT) {
            if (!strstr(problem.hint, "mlopt compile"))
                fail_msg("byte %zu: %s (%s)", at, problem.message, problem.hint);
            refused++;
        }
        mlo_plan_close(file);
        file = NULL;
    }
    assert_true(refused > 10);
    mlo_plan_info_clear(&info);
    mlo_buf_clear(&bytes);
}

static void test_plan__of_another_instruction_set_is_stale(void **state)
{
    struct place *p = *state;
    if (mlo_isa_current() <= MLO_ISA_AVX2)
        skip();
    mlo_isa_override(MLO_ISA_AVX2);
    assert_refused(p->plan, NULL, MLO_ESTALE, "(here: avx2)");
}

/* The fingerprint says another engine's revision, another processor, or another version. */
static void test_plan__of_another_engine_or_machine_is_stale(void **state)
{
    struct place *p = *state;
    static const struct {
        const char *from, *to, *part;
    } changes[] = {
        {"\"revision\":\"", "\"revision\":\"z", "revision z"},
        {"\"family\":\"", "\"family\":\"9", "family 9"},
        {"\"mlopt\":\"", "\"mlopt\":\"7", "mlopt 7"},
        {"\"version\":\"cpu ", "\"version\":\"gpu ", "version gpu"},
    };
    for (size_t i = 0; i < MLO_COUNT(changes); i++) {
        struct mlo_buf bytes = read_file(p->plan);
        char *at = memmem(bytes.data, 4096, changes[i].from, strlen(changes[i].from));
        assert_non_null(at);
        memcpy(at, changes[i].to, strlen(changes[i].to));
        MUST(mlo_fs_write_atomic(p->plan, bytes.data, bytes.len, err));
        sign(p->plan, p->key);
        assert_refused(p->plan, NULL, MLO_ESTALE, changes[i].part);
        mlo_buf_clear(&bytes);
        write_plan(p, p->plan, p->key);
    }
}

/* A fingerprint that leaves a member of the machine out does not fit every machine. */
static void test_plan__machine_must_be_described_in_full(void **state)
{
    struct place *p = *state;
    struct mlo_plan_info info;
    const struct mlo_engine *engine;
    struct mlo_error problem = {0};
    MUST(mlo_plan_inspect(p->plan, false, &info, err));
    MUST(mlo_plan_check_machine(info.fingerprint, &engine, err));
    assert_int_equal(json_object_del(json_object_get(info.fingerprint, "machine"), "revision"), 0);
    assert_int_equal(mlo_plan_check_machine(info.fingerprint, &engine, &problem), MLO_ESTALE);
    assert_non_null(strstr(problem.message, "in full"));
    mlo_plan_info_clear(&info);
}

/* One without products in FP16 says nothing of them, and fits whatever computes those; one with them does
 * not. */
static void test_plan__machine_has_fp16_only_for_its_products(void **state)
{
    struct place *p = *state;
    struct mlo_plan_info info;
    const struct mlo_engine *engine;
    struct mlo_error problem = {0};
    MUST(mlo_plan_inspect(p->plan, false, &info, err));
    json_t *machine = json_object_get(info.fingerprint, "machine");
    assert_null(json_object_get(machine, "fp16"));
    MUST(mlo_plan_check_machine(info.fingerprint, &engine, err));
    assert_int_equal(json_object_set_new(machine, "fp16", json_string("another")), 0);
    assert_int_equal(mlo_plan_check_machine(info.fingerprint, &engine, &problem), MLO_ESTALE);
    assert_non_null(strstr(problem.message, "fp16 another"));
    mlo_plan_info_clear(&info);
}

/* Files have the rights that the user's mask leaves, private folders none for others, whatever it is; and
 * what other threads create meanwhile is not touched: the mask is never changed. */
static void test_plan__rights_follow_the_mask(void **state)
{
    struct place *p = *state;
    struct stat st;
    mode_t before = umask(077);
    write_plan(p, p->plan, p->key);
    assert_int_equal(stat(p->plan, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    umask(0);
    assert_runs(p, p->plan, NULL);
    assert_int_equal(stat(p->cache, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    umask(before);
}

/* A copy into the cache that a killed process left is dropped, once it is old enough to be nobody's. */
static void test_plan__unfinished_copies_are_dropped(void **state)
{
    struct place *p = *state;
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    MUST(mlo_fs_mkdirs_private(p->cache, err));
    char *old = mlo_fs_join(p->cache, "new-0123456789abcdef", NULL),
         *fresh = mlo_fs_join(p->cache, "new-fedcba9876543210", NULL);
    MUST(mlo_fs_write_atomic(old, "x", 1, err));
    MUST(mlo_fs_write_atomic(fresh, "x", 1, err));
    assert_int_equal(utimensat(AT_FDCWD, old, long_ago, 0), 0);
    assert_runs(p, p->plan, NULL);
    assert_false(mlo_fs_exists(old));
    assert_true(mlo_fs_exists(fresh));
    free(old);
    free(fresh);
}

static void test_plan__of_another_model_is_stale(void **state)
{
    struct place *p = *state;
    struct mlo_digest other;
    mlo_digest_of("another", 7, &other);
    struct mlo_plan_open_options options = {.model = &other};
    assert_refused(p->plan, &options, MLO_ESTALE, "not for sha256:");
    options.model = &p->source.model;
    assert_runs(p, p->plan, &options);
}

static void test_plan__observed_values_cannot_be_kept(void **state)
{
    struct place *p = *state;
    const char *observed[] = {"x"};
    struct mlo_compile_options o = {.batch = 2, .threads = 1, .observe = observed, .observe_count = 1};
    struct mlo_plan *plan = NULL;
    struct mlo_error problem = {0};
    MUST(cpu()->compile(p->net.model, &o, &plan, err));
    assert_int_equal(mlo_plan_write(cpu(), plan, &p->source, p->key, p->plan, &problem), MLO_EUNSUPPORTED);
    cpu()->free_plan(plan);
}

/* Every few bytes of the engine's part turned over, as if a trusted key had signed nonsense: an error or a
 * plan that runs inside of its memory (which the sanitizers watch). */
static void test_plan__hostile_bytes_do_no_harm(void **state)
{
    struct place *p = *state;
    struct mlo_plan *plan = NULL;
    struct plan_copy copy;
    struct mlo_compile_options o = {.batch = 2, .threads = 1};
    MUST(cpu()->compile(p->net.model, &o, &plan, err));
    MUST(plan_copy(cpu(), plan, &copy, err));
    uint64_t fields;
    memcpy(&fields, (char *)copy.bytes + 8, sizeof fields);
    char *bytes = cpu_aligned(copy.size);
    int restored = 0, refused = 0;
    for (size_t at = 0; at < 32 + (size_t)fields; at += 5) {
        struct mlo_plan *again = NULL;
        struct mlo_program *program = NULL;
        struct mlo_tensor out = {0};
        struct mlo_error problem = {0};
        memcpy(bytes, copy.bytes, copy.size);
        bytes[at] = (char)(at % 2 ? bytes[at] + 1 : ~bytes[at]);
        if (cpu()->restore(bytes, copy.size, &again, &problem) != MLO_OK) {
            assert_string_not_equal(problem.message, "");
            refused++;
            continue;
        }
        restored++;
        if (again->arena_bytes < 1 << 24 && again->scratch_bytes < 1 << 24 && again->threads < 8 &&
            cpu()->load(again, &program, &problem) == MLO_OK && again->model->graph->output_count == 1)
            (void)!cpu()->run(program, &p->x, &out, &problem);
        mlo_tensor_clear(&out);
        cpu()->unload(program);
        cpu()->free_plan(again);
    }
    assert_true(refused > 50 && restored > 10);
    free(bytes);
    plan_copy_free(cpu(), &copy);
    cpu()->free_plan(plan);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_plan__runs_as_compiled),
        CASE(test_plan__is_verified_once),
        CASE(test_plan__weights_are_not_copied),
        CASE(test_plan__truncated_is_a_format_error),
        CASE(test_plan__that_becomes_shorter_is_an_error),
        CASE(test_plan__changed_bytes_are_refused),
        CASE(test_plan__is_signed_as_it_was_read),
        CASE(test_plan__only_trusted_keys_count),
        CASE(test_plan__keys_and_cache_are_private),
        CASE(test_plan__without_a_cache_is_checked_each_time),
        CASE(test_plan__damaged_copies_are_made_again),
        CASE(test_plan__that_does_not_restore_says_what_to_do),
        CASE(test_plan__of_another_instruction_set_is_stale),
        CASE(test_plan__of_another_engine_or_machine_is_stale),
        CASE(test_plan__machine_must_be_described_in_full),
        CASE(test_plan__machine_has_fp16_only_for_its_products),
        CASE(test_plan__rights_follow_the_mask),
        CASE(test_plan__unfinished_copies_are_dropped),
        CASE(test_plan__of_another_model_is_stale),
        CASE(test_plan__observed_values_cannot_be_kept),
        CASE(test_plan__hostile_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
