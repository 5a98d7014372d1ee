// Package deadletter is the store of dead letters and what an operator does with them. The dead-letter topic stays
// the transport; the store indexes what is on it. The package owns a dead letter's life ([State]), how it is found
// ([Filter]), who did what to it ([Entry]), what is kept of personal data ([Protection]), and the way back to the
// consumer ([Redriver]). It knows no broker and no database: stores/* implement [Table], and any Watermill publisher will do.
//
// # States
//
//	new -> redriving -> redriven          a redrive: claimed, published and confirmed, marked
//	new -> resolved                       edited into another one, or done with by other means
//	new -> discarded                      given up by an operator
//
// A claim ends by itself. What a dead operator's process had claimed can be claimed again; if it was published already, it
// is published twice, and the consumer's inbox removes the copy. A letter that was redriven can be redriven again if
// it is named by its state. Every change has an entry in the trail with who, when and why.
//
// A message that fails again after a redrive is another letter, with one death more. If an earlier letter of the
// same message is still new then, it is resolved: there is one letter to work for each message.
//
// # What is stored
//
// The letter as it was, byte for byte: a document that carries a version, the payload, and columns to search by. See [Protection] for
// redaction and encryption, and [Store.Purge] for retention and for the removal of a person's data.
package deadletter
