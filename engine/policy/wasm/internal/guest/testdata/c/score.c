// The C test guest: the score rules of the benchmarks.
//
// Build (Debian's clang 14 and lld 14 give the committed score.wasm byte for byte):
//   clang --target=wasm32 -O2 -nostdlib -ffreestanding -mbulk-memory -Wl,--no-entry -Wl,--strip-all -o score.wasm score.c

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef long long i64;
typedef unsigned long long u64;

#define EXPORT(name) __attribute__((export_name(name)))
#define NONE 0xffffffffu
#define MAX_ROWS 8192

extern u8 __heap_base;

static u64 response[(40 + 32 + MAX_ROWS * (8 + 1 + 4 + 4) + 1024) / 8];

EXPORT("dv_abi_1") i32 dv_abi_1(void) { return 0; }

// One request buffer, from the end of the static data on.
EXPORT("dv_alloc") u32 dv_alloc(u32 size) {
  u32 base = ((u32)&__heap_base + 7) & ~7u;
  u32 have = __builtin_wasm_memory_size(0) << 16;
  if (size > have || base > have - size) {
    u32 pages = (base + size - have + 65535) >> 16;
    if (__builtin_wasm_memory_grow(0, pages) == (u32)-1) return 0;
  }
  return base;
}

static u32 at(const u8 *f, u32 offset) { return *(const u32 *)(f + offset); }

static const void *column(const u8 *f, u16 id) {
  u32 n = at(f, 16), dir = at(f, 20);
  for (u32 i = 0; i < n; i++)
    if (*(const u16 *)(f + dir + 8 * i) == id) return f + at(f, dir + 8 * i + 4);
  return 0;
}

struct text {
  const u8 *p;
  u32 size;
};

static struct text text(const u8 *f, u32 id) {
  u32 count = at(f, 32), table = at(f, 36);
  struct text t = {0, 0};
  if (id >= count) return t;
  u32 from = at(f, table + 4 * id);
  t.size = at(f, table + 4 * id + 4) - from;
  t.p = f + table + 4 * (count + 1) + from;
  return t;
}

static int equal(struct text t, const char *s) {
  u32 i = 0;
  for (; i < t.size; i++)
    if (s[i] == 0 || t.p[i] != (u8)s[i]) return 0;
  return s[i] == 0;
}

static struct text context(const u8 *f, const char *key) {
  u32 n = at(f, 24), kv = at(f, 28);
  for (u32 i = 0; i < n; i++)
    if (at(f, kv + 16 * i + 4) == 4 && equal(text(f, at(f, kv + 16 * i)), key)) return text(f, at(f, kv + 16 * i + 8));
  struct text none = {0, 0};
  return none;
}

static const char reasons[] = "burstableburstable familysmallless than 4 GiBgiantmore than 64 coresarcharm64 is not allowed";
static const u32 ends[] = {0, 9, 25, 30, 45, 50, 68, 72, 92};

static u32 up8(u32 n) { return (n + 7) & ~7u; }

EXPORT("dv_score") u64 dv_score(u32 ptr, u32 size) {
  const u8 *f = (const u8 *)ptr;
  u32 rows = at(f, 12);
  if (rows > MAX_ROWS || size < 40) return 0;
  const i64 *cost = column(f, 1);
  const i32 *rate = column(f, 3), *cpu = column(f, 4), *memory = column(f, 5);
  const u32 *family = column(f, 8), *arch = column(f, 10), *capacity = column(f, 12);
  if (!cost || !rate || !cpu || !memory || !family || !arch || !capacity) return 0;
  int licensed = equal(context(f, "nodePool.labels.licensed"), "true");
  int arm = equal(context(f, "nodePool.labels.arm"), "true");

  u32 cost_at = 40 + 8 * 4, deny_at = cost_at + 8 * rows, reason_at = up8(deny_at + rows);
  u32 code_at = up8(reason_at + 4 * rows), text_at = up8(code_at + 4 * rows);
  u32 length = up8(text_at + sizeof ends + sizeof reasons - 1);
  u8 *out = (u8 *)response;
  const u32 head[] = {0x31465644, 1, length, rows, 4, 40, 0, 0, 8, text_at, 1 | 2 << 16, cost_at,
                      2 | 5 << 16, deny_at, 3 | 4 << 16, reason_at, 4 | 4 << 16, code_at};
  __builtin_memcpy(out, head, sizeof head);
  __builtin_memcpy(out + text_at, ends, sizeof ends);
  __builtin_memcpy(out + text_at + sizeof ends, reasons, sizeof reasons - 1);
  i64 *out_cost = (i64 *)(out + cost_at);
  u8 *out_deny = out + deny_at;
  u32 *out_reason = (u32 *)(out + reason_at), *out_code = (u32 *)(out + code_at);

  for (u32 i = 0; i < rows; i++) {
    struct text name = text(f, family[i]);
    u8 a = name.size > 0 ? name.p[0] : 0, b = name.size > 1 ? name.p[1] : 0;
    i64 weight = 1000;
    if ((a == 'c' || a == 'm') && b == '7')
      weight = 950;
    else if (a == 'r')
      weight = 1050;
    i64 c = cost[i] * weight / 1000;
    if (licensed) c += (i64)(cpu[i] / 1000) * 12500;
    if (equal(text(f, capacity[i]), "spot")) c += cost[i] * rate[i] / 1000;
    out_cost[i] = c;
    u32 reason = NONE;
    if (a == 't')
      reason = 0;
    else if (memory[i] < 4096)
      reason = 2;
    else if (cpu[i] > 64000)
      reason = 4;
    else if (!arm && equal(text(f, arch[i]), "arm64"))
      reason = 6;
    out_deny[i] = reason != NONE;
    out_reason[i] = reason == NONE ? NONE : reason + 1;
    out_code[i] = reason;
  }
  return (u64)(u32)out << 32 | length;
}
