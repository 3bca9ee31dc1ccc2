/* Ed25519: a vector of RFC 8032, keys as files, and what is refused. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cm.h"

static void bytes_of(const char *hex, uint8_t *out, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
}

/* RFC 8032, section 7.1, test 1: the empty message. */
static void test_sign__verifies_the_rfcs_vector(void **state)
{
    MLO_UNUSED(state);
    struct mlo_public_key key;
    struct mlo_signature signature;
    assert_true(mlo_public_key_parse(
        "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", &key));
    bytes_of(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
        signature.bytes, sizeof signature.bytes);
    assert_true(mlo_sign_verify(&key, "", 0, &signature));
    assert_false(mlo_sign_verify(&key, "x", 1, &signature));
    signature.bytes[3] ^= 1;
    assert_false(mlo_sign_verify(&key, "", 0, &signature));
}

static void test_sign__keys_live_in_private_files(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_sign_key *key = NULL, *again = NULL;
    struct mlo_signature signature;
    struct stat st;
    char *dir = NULL;
    assert_ok(mlo_fs_tempdir(NULL, "mlopt-sign-", &dir, &err));
    char *path = mlo_fs_join(dir, "a.key", NULL);
    assert_ok(mlo_sign_key_create(path, &key, &err));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(mlo_sign_key_create(path, &again, &err), MLO_EEXISTS);
    assert_ok(mlo_sign_key_load(path, &again, &err));
    assert_true(mlo_public_key_eq(mlo_sign_key_public(key), mlo_sign_key_public(again)));
    assert_ok(mlo_sign(again, "text", 4, &signature, &err));
    assert_true(mlo_sign_verify(mlo_sign_key_public(key), "text", 4, &signature));
    mlo_sign_key_free(again);
    again = NULL;
    chmod(path, 0640);
    assert_int_equal(mlo_sign_key_load(path, &again, &err), MLO_EFORBIDDEN);
    chmod(path, 0600);
    assert_int_equal(truncate(path, 20), 0);
    assert_int_equal(mlo_sign_key_load(path, &again, &err), MLO_EFORMAT);
    mlo_sign_key_free(key);
    mlo_fs_remove_tree(dir);
    free(path);
    free(dir);
}

static void test_public_key__has_one_text(void **state)
{
    MLO_UNUSED(state);
    static const char *const wrong[] = {
        "",
        "ed25519:",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511",
        "ed25519:x75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "ed25519:sha256:980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f70751"};
    struct mlo_public_key key = {.bytes = {1, 2, 0xfe}}, back;
    char text[MLO_PUBLIC_KEY_TEXT_SIZE];
    assert_true(mlo_public_key_parse(mlo_public_key_text(&key, text), &back));
    assert_true(mlo_public_key_eq(&key, &back));
    for (size_t i = 0; i < MLO_COUNT(wrong); i++)
        assert_false(mlo_public_key_parse(wrong[i], &back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sign__verifies_the_rfcs_vector),
        cmocka_unit_test(test_sign__keys_live_in_private_files),
        cmocka_unit_test(test_public_key__has_one_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
