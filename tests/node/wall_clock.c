/*
 * A wall clock for one program. When it is preloaded, it writes a jump to the beginning of the vDSO's clock_gettime.
 * libc, and every library that reads the clock without libc, ends up there. The time then comes from the kernel, and the
 * wall clock is moved by the whole seconds (signed, 8 bytes) in the file that WALL_CLOCK_OFFSET names.
 *
 * It calls nothing that allocates, because the program's own allocator may not be initialised yet. gettimeofday is not
 * changed: its answer goes back to the kernel as a deadline (jemalloc's thread waits in that way), and the kernel's clock
 * has not been set.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NAME "__vdso_clock_gettime"
/* mov $here, %rax; jmp *%rax */
static const unsigned char jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
#define ADDRESS 2
#elif defined(__aarch64__)
#define NAME "__kernel_clock_gettime"
/* ldr x16, .+8; br x16; here */
static const unsigned char jump[] = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6, 0, 0, 0, 0, 0, 0, 0, 0};
#define ADDRESS 8
#else
#error "the jump into the vDSO is not known for this processor"
#endif

static const volatile int64_t *offset;

static int shifted(clockid_t clock, struct timespec *time) {
	int saved = errno;
	long failed = syscall(SYS_clock_gettime, clock, time);
	int answer = failed ? -errno : 0;
	errno = saved;
	if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
		time->tv_sec += *offset;
	return answer;
}

static void fail(const char *what) {
	(void)!write(2, what, strlen(what));
	_exit(97);
}

/* Finds the function in the vDSO. The symbol table ends where the string table begins. */
static unsigned char *find(const unsigned char *vdso) {
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)vdso;
	const Elf64_Phdr *segments = (const Elf64_Phdr *)(vdso + header->e_phoff);
	const Elf64_Dyn *entry = 0;
	const unsigned char *base = vdso;
	for (int i = 0; i < header->e_phnum; i++) {
		if (segments[i].p_type == PT_LOAD)
			base = vdso + segments[i].p_offset - segments[i].p_vaddr;
		else if (segments[i].p_type == PT_DYNAMIC)
			entry = (const Elf64_Dyn *)(vdso + segments[i].p_offset);
	}
	const Elf64_Sym *symbol = 0;
	const char *names = 0;
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_SYMTAB)
			symbol = (const Elf64_Sym *)(base + entry->d_un.d_ptr);
		else if (entry->d_tag == DT_STRTAB)
			names = (const char *)(base + entry->d_un.d_ptr);
	}
	for (; symbol && (const char *)(symbol + 1) <= names; symbol++)
		if (!strcmp(names + symbol->st_name, NAME))
			return (unsigned char *)base + symbol->st_value;
	return 0;
}

__attribute__((constructor)) static void set(void) {
	const char *path = getenv("WALL_CLOCK_OFFSET");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *shared = file < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED)
		fail("WALL_CLOCK_OFFSET names no file that can be mapped\n");
	close(file);
	offset = shared;
	unsigned char *vdso = (unsigned char *)getauxval(AT_SYSINFO_EHDR);
	unsigned char *function = vdso ? find(vdso) : 0;
	if (!function)
		fail("the vDSO has no " NAME "\n");
	unsigned char code[sizeof jump];
	uintptr_t here = (uintptr_t)shifted;
	memcpy(code, jump, sizeof jump);
	memcpy(code + ADDRESS, &here, sizeof here);
	/* The kernel does not split this mapping, so all of it is made writable. Its length is not known. */
	size_t page = sysconf(_SC_PAGESIZE), length = page;
	while (length < 64 * page && mprotect(vdso, length, PROT_READ | PROT_WRITE | PROT_EXEC))
		length += page;
	if (length == 64 * page)
		fail("the vDSO cannot be written to\n");
	memcpy(function, code, sizeof code);
	__builtin___clear_cache((char *)function, (char *)function + sizeof code);
	mprotect(vdso, length, PROT_READ | PROT_EXEC);
}
