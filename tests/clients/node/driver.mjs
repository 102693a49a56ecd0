// KafkaJS controlled by lines of JSON: a command per line on standard input, an answer per line on standard output.
// A command is {"call": NAME, ...arguments}; its answer is {"result": ...} or {"error": "..."}. Bytes are in base64.

import { createInterface } from 'node:readline'
import kafkajs from 'kafkajs'
import snappy from 'kafkajs-snappy'
import lz4 from 'lz4-napi'
import zstd from '@bokuweb/zstd-wasm'

const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = kafkajs

CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
})
await zstd.init()
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
})
const codecs = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const kafka = new Kafka({
  clientId: 'tests-kafkajs',
  brokers: [process.argv[2]],
  logLevel: logLevel.ERROR,
  logCreator: () => ({ log }) => process.stderr.write(`${log.message} ${log.error ?? ''}\n`),
  retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 60 },
})

let producer
const transactional = new Map()
let sending
let consumer
let received = []
let more = () => {}

const decoded = ({ partition, message }) => ({
  partition,
  offset: Number(message.offset),
  timestamp_ms: Number(message.timestamp),
  key: message.key === null ? null : message.key.toString('base64'),
  value: message.value.toString('base64'),
  headers: Object.entries(message.headers ?? {}).map(([name, value]) => [name, value.toString('base64')]),
})

const startConsumer = async (topic, groupId, start) => {
  received = []
  consumer = kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 500, maxWaitTimeInMs: 500 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async (payload) => {
      received.push(decoded(payload))
      more()
    },
  })
  if (start) consumer.seek({ topic, ...start })
}

// KafkaJS fails a send, despite its retries, if the connection is lost during a metadata request. It has not counted the
// messages as sent, so a repeated send has the same sequence numbers and the broker recognises duplicates.
const sendPersistently = async (batch) => {
  for (let attempt = 1; ; attempt++) {
    try {
      return await producer.client.send(batch)
    } catch (error) {
      if (error.message !== 'Broker not connected' || attempt === 100) throw error
      await new Promise((resolve) => { setTimeout(resolve, 200) })
    }
  }
}

const calls = {
  async createTopic({ topic, partitions }) {
    const admin = kafka.admin()
    await admin.connect()
    const created = await admin.createTopics({ topics: [{ topic, numPartitions: partitions }] })
    await admin.disconnect()
    return created
  },
  async offsetAt({ topic, partition, timestamp }) {
    const admin = kafka.admin()
    await admin.connect()
    const offsets = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp)
    await admin.disconnect()
    return Number(offsets.find((found) => found.partition === partition).offset)
  },
  async startProducer({ topic, codec }) {
    const admin = kafka.admin()
    await admin.connect()
    const metadata = await admin.fetchTopicMetadata({ topics: [topic] })
    await admin.disconnect()
    const partitions = metadata.topics[0].partitions.length
    producer = { topic, codec, partitions, client: kafka.producer({ idempotent: true, maxInFlightRequests: 1 }) }
    await producer.client.connect()
    sending = Promise.resolve()
  },
  async send({ messages }) {
    const batch = {
      topic: producer.topic,
      acks: -1,
      compression: codecs[producer.codec],
      messages: messages.map(({ key, value, headers }, number) => ({
        key,
        value,
        headers: Object.fromEntries(headers),
        // a repeated message must go to the same partition
        ...(key === null ? { partition: number % producer.partitions } : {}),
      })),
    }
    sending = sending.then(() => sendPersistently(batch))
    sending.catch(() => {}) // finishProducer reports errors
  },
  async finishProducer() {
    await sending
  },
  async stopProducer() {
    await producer.client.disconnect()
  },
  async startTransactional({ name, transactionalId, timeout }) {
    const client = kafka.producer({
      transactionalId,
      transactionTimeout: timeout,
      idempotent: true,
      maxInFlightRequests: 1,
    })
    await client.connect()
    // KafkaJS requests its producer id, and so fences its predecessor, when its first transaction begins
    transactional.set(name, { client, next: await client.transaction() })
  },
  async begin({ name }) {
    const entry = transactional.get(name)
    entry.transaction = entry.next ?? (await entry.client.transaction())
    entry.next = undefined
  },
  async sendInTransaction({ name, topic, partition, values }) {
    const messages = values.map((value) => ({ partition, value }))
    await transactional.get(name).transaction.send({ topic, acks: -1, messages })
  },
  async sendOffsets({ name, group, offsets }) {
    const topics = offsets.map(([topic, partition, offset]) => (
      { topic, partitions: [{ partition, offset: String(offset) }] }
    ))
    await transactional.get(name).transaction.sendOffsets({ consumerGroupId: group, topics })
  },
  async endTransaction({ name, commit }) {
    const { transaction } = transactional.get(name)
    await (commit ? transaction.commit() : transaction.abort())
  },
  async stopTransactional({ name }) {
    await transactional.get(name).client.disconnect()
    transactional.delete(name)
  },
  async startConsumer({ topic, group, start }) {
    await startConsumer(topic, group, start)
  },
  async receive({ count }) {
    while (received.length < count) await new Promise((resolve) => { more = resolve })
    return received.splice(0, count)
  },
  async commit({ topic, offsets }) {
    await consumer.commitOffsets(offsets.map(([partition, offset]) => ({ topic, partition, offset: String(offset) })))
  },
  async stopConsumer() {
    await consumer.disconnect()
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const { call, ...given } = JSON.parse(line)
  let answer
  try {
    answer = { result: (await calls[call](given)) ?? null }
  } catch (error) {
    answer = { error: String(error.stack ?? error), type: error.type ?? error.cause?.type }
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`)
}
process.exit(0)
