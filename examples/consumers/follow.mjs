// follow.mjs SOCKET-OR-URL JOB: the same with Node (npm install ioredis).
import Redis from "ioredis";

const [address, job] = process.argv.slice(2);
const server = new Redis(address), cursors = { [`sr:{${job}}:log`]: "0" };
for (let ended = false; ; ) {
  const block = ended ? [] : ["BLOCK", 0]; // once it has ended, read what is left
  const streams = await server.xread(...block, "STREAMS", ...Object.keys(cursors), ...Object.values(cursors));
  if (!streams) break;
  for (const [key, entries] of streams) for (const [id, fields] of entries) {
    cursors[key] = id;
    const { type, data, d } = Object.fromEntries(fields.flatMap((f, i) => (i % 2 ? [] : [[f, fields[i + 1]]])));
    for (const [row, , choice, at, , text] of JSON.parse(d ?? "[]"))
      console.log(`row ${row} choice ${choice} token ${at}: ${JSON.stringify(text)}`);
    if (type) console.log(type, JSON.parse(data).custom_id ?? "");
    if (type === "worker.joined") cursors[`sr:{${job}}:steps:${JSON.parse(data).worker}`] = "0";
    ended ||= type === "job.ended";
  }
}
server.disconnect();
