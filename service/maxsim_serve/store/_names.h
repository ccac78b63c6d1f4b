/* What the look-up knows an id by, in registers: a short one and a UUID whole, any other by a fingerprint. */

#ifndef MAXSIM_NAMES_H
#define MAXSIM_NAMES_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

/* What is called for every id: a call takes as long as what is in it. */
#define ALWAYS_INLINE __attribute__((always_inline)) inline

/* An ASCII id of less than 32 characters: those, up to three eights of them from the front and the last few, and
 * their number plus one in the last byte. A UUID in lower case: its 16 bytes, and as much in the last byte. That is 0
 * for any other, which has two hashes, its size and its kind; all is 0 for what is no string. */
struct name {
    uint64_t words[4];
};
#define MOST_NAMED 31
#define UUID 36

/* Of the process: which ids have one hash must not be known to those who choose them. */
static uint64_t secret[4];

/* Of a whole id; else of a fingerprint. */
static int is_named(const struct name *name) { return name->words[3] != 0; }

static uint64_t eight(const char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static uint64_t fewer_than_eight(const char *bytes, Py_ssize_t length) {
    if (length >= 4) {
        uint32_t first, last;
        memcpy(&first, bytes, sizeof first);
        memcpy(&last, bytes + length - 4, sizeof last);
        return first | (uint64_t)last << 32;
    }
    uint64_t word = 0;
    for (Py_ssize_t i = 0; i < length; i++) word = word << 8 | (unsigned char)bytes[i];
    return word;
}

static uint64_t folded(uint64_t a, uint64_t b) {
    const unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Of what has no room in a name. */
static struct name fingerprint(const char *bytes, Py_ssize_t size, int kind) {
    uint64_t one = secret[0], other = secret[1];
    for (Py_ssize_t at = 0; at < size; at += 16) {
        uint64_t block[2] = {0};
        if (size >= 16) /* the last one ends with the id */
            memcpy(block, bytes + Py_MIN(at, size - 16), 16);
        else
            memcpy(block, bytes, size);
        one = folded(block[0] ^ one, block[1] ^ secret[2]);
        other = folded(block[1] ^ other, block[0] ^ secret[3]);
    }
    return (struct name){{one, other, (uint64_t)size << 8 | kind, 0}};
}

/* In registers alone: to read as words what was written as bytes takes longer than all the rest. */
static ALWAYS_INLINE struct name whole(const char *bytes, Py_ssize_t length) {
    struct name name = {{0}};
    uint64_t *words = name.words;
    if (length < 8) {
        words[0] = fewer_than_eight(bytes, length);
    } else {
        words[0] = eight(bytes);
        words[1] = eight(length < 16 ? bytes + length - 8 : bytes + 8);
        if (length > 16) words[2] = eight(length < 24 ? bytes + length - 8 : bytes + 16);
        if (length > 24) words[3] = eight(bytes + length - 8) >> 8 * (32 - length);
    }
    words[3] |= (uint64_t)(length + 1) << 56;
    return name;
}

/* Eight bytes, each times a number. */
#define EACH(number) (0x0101010101010101u * (number))

/* 32 bits of eight hexadecimal digits, a byte each; `valid` turns 0 where one is none. */
static ALWAYS_INLINE uint64_t digits(uint64_t characters, int *valid) {
    uint64_t values = (characters & EACH(0x0f)) + 9 * (characters >> 6 & EACH(1));
    const uint64_t letters = (values + EACH(128 - 10)) >> 7 & EACH(1);
    *valid &= values + EACH('0') + letters * ('a' - '0' - 10) == characters && !(values & EACH(0xf0));
    values = (values | values >> 4) & 0x00ff00ff00ff00ffu;
    values = (values | values >> 8) & 0x0000ffff0000ffffu;
    return (values | values >> 16) & 0xffffffffu;
}

/* Two fours of characters. */
static uint64_t fours(const char *one, const char *other) {
    uint32_t low, high;
    memcpy(&low, one, sizeof low);
    memcpy(&high, other, sizeof high);
    return low | (uint64_t)high << 32;
}

/* 12345678-1234-1234-1234-123456789abc; all 0 for what is none. */
static struct name uuid(const char *at) {
    int valid = at[8] == '-' && at[13] == '-' && at[18] == '-' && at[23] == '-';
    const uint64_t one = digits(eight(at), &valid), two = digits(fours(at + 9, at + 14), &valid);
    const uint64_t three = digits(fours(at + 19, at + 24), &valid), four = digits(eight(at + 28), &valid);
    if (!valid) return (struct name){{0}};
    return (struct name){{one | two << 32, three | four << 32, 0, (uint64_t)(UUID + 1) << 56}};
}

static int is_string(PyObject *id) {
#if PY_VERSION_HEX < 0x030C0000
    return PyUnicode_Check(id) && PyUnicode_IS_READY(id);
#else
    return PyUnicode_Check(id);
#endif
}

static __attribute__((noinline)) struct name name_of_any(PyObject *id) {
    if (!is_string(id)) return (struct name){{0}};
    const Py_ssize_t length = PyUnicode_GET_LENGTH(id);
    if (PyUnicode_IS_ASCII(id) && length <= MOST_NAMED) return whole(PyUnicode_DATA(id), length);
    if (PyUnicode_IS_ASCII(id) && length == UUID) {
        const struct name name = uuid(PyUnicode_DATA(id));
        if (is_named(&name)) return name;
    }
    return fingerprint(PyUnicode_DATA(id), length * PyUnicode_KIND(id), PyUnicode_KIND(id));
}

static ALWAYS_INLINE struct name name_of(PyObject *id) {
    if (PyUnicode_CheckExact(id) && PyUnicode_IS_COMPACT_ASCII(id) && PyUnicode_GET_LENGTH(id) <= MOST_NAMED)
        return whole(PyUnicode_DATA(id), PyUnicode_GET_LENGTH(id));
    return name_of_any(id);
}

static int is_nothing(const struct name *name) { return (name->words[2] | name->words[3]) == 0; }

static int is_same(const struct name *one, const struct name *other) {
    return ((one->words[0] ^ other->words[0]) | (one->words[1] ^ other->words[1]) | (one->words[2] ^ other->words[2]) |
            (one->words[3] ^ other->words[3])) == 0;
}

/* Python's own hash takes four times as long. */
static ALWAYS_INLINE uint64_t hash_of(const struct name *name) {
    const uint64_t *words = name->words;
    if (!is_named(name)) return words[0];
    return folded(folded(words[0] ^ secret[0], words[1] ^ secret[1]) ^ secret[2],
                  folded(words[2] ^ secret[2], words[3] ^ secret[3]) ^ secret[0]);
}

/* Of ids of one fingerprint, hence of one size and kind: a string has one form of a kind. */
static int is_same_string(PyObject *known, PyObject *id) {
    return memcmp(PyUnicode_DATA(known), PyUnicode_DATA(id), PyUnicode_GET_LENGTH(id) * PyUnicode_KIND(id)) == 0;
}

/* The secret is made of hashes, which Python's own secret is in. */
static int choose_secret(void) {
    for (int i = 0; i < 4; i++) {
        PyObject *text = PyUnicode_FromFormat("maxsim %d", i);
        if (text == NULL) return -1;
        secret[i] = (uint64_t)PyObject_Hash(text) | 1;
        Py_DECREF(text);
    }
    return 0;
}

#endif
