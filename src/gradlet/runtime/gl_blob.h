/* Arrays whose bytes are those of a file. The assembler takes them over as they are, so that a large
 * network compiles as quickly as a small one. The file is looked for where headers are. */
#ifndef GL_BLOB_H
#define GL_BLOB_H

#if defined(__GNUC__) && !defined(__wasm__) && !defined(GL_WEIGHTS_IN_C)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ /* as the file is */
#define GL_HAS_BLOBS 1
#endif
#endif

#ifdef GL_HAS_BLOBS
#define GL_TEXT(x) GL_TEXT_OF(x)
#define GL_TEXT_OF(x) #x
#define GL_SYMBOL(name) GL_TEXT(__USER_LABEL_PREFIX__) #name
#ifdef __ELF__
#define GL_KIND(name, bytes) \
    ".type " GL_SYMBOL(name) ", %object\n" \
    ".size " GL_SYMBOL(name) ", " #bytes "\n"
#else
#define GL_KIND(name, bytes)
#endif

/* `bytes` of a file, from byte `first` on; `section` is a directive of the assembler. */
#define GL_BLOB(name, section, align, file, first, bytes) \
    __asm__(section "\n" \
            ".balign " #align "\n" \
            ".globl " GL_SYMBOL(name) "\n" GL_KIND(name, bytes) \
            GL_SYMBOL(name) ":\n" \
            ".incbin \"" file "\", " #first ", " #bytes "\n" \
            ".text\n")
#endif

#endif
